"""Where a message goes, as one worker knows it.

The pattern index holds three kinds of subscribers: outboxes of this worker's own clients, the
numbers of other workers that have a client for the pattern, and the back-pressure rules of clients
anywhere. A route is what the index says about one key, remembered in the route cache until a change
of the index concerns it.

For secret keys the index finds too many: an empty id of a pattern stands in it as a `*`, because no
other worker knows whose the pattern is. Here it is known, and every secret recipient is asked.
Likewise for clients whom access rules about subscribing concern, the rules are asked, key by key.

This module does not know when a change takes effect (the sequencer does), nor how a route is used.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from sbus.broker.delivery.backpressure import BackpressureRule, unpack_rule
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.secret_recipient import ProcessLifetimeGuard, SecretRecipient
from sbus.limits import Limits
from sbus.protocol.keys import Dialect, check_key, is_reserved, parse_pattern
from sbus.protocol.secret_keys import Ids, ids_of, widened
from sbus.routing.index import PatternIndex
from sbus.routing.route_cache import RouteCache
from sbus.shared.subscription_table import (
    HOLDS,
    HOLDS_NO_MORE,
    SUBSCRIBED,
    UNSUBSCRIBED,
    WORKER_RESET,
    Record,
)

_ROUTE_BYTES = 120
_POINTER_BYTES = 8
_BYTES_PER_SEGMENT = 64


_NO_RULES: Mapping[int, Sequence[BackpressureRule]] = {}


def _by_whom(rules: list[BackpressureRule]) -> Mapping[int, Sequence[BackpressureRule]]:
    """Rules by the user whose publishers they may hold."""
    by_whom: dict[int, list[BackpressureRule]] = {}
    for rule in rules:
        by_whom.setdefault(rule.holds, []).append(rule)
    return by_whom or _NO_RULES


class Route:
    """Destinations of one key: other workers as a mask, this worker's clients as outboxes; and the
    clients anywhere that publishers may have to wait for, by whose publishers: a user's, or
    `ANYBODY`'s."""

    __slots__ = ("backpressure_rules", "fan_out", "mask", "recipients")

    def __init__(
        self,
        mask: int,
        recipients: tuple[Outbox | ProcessLifetimeGuard, ...],
        rules: Mapping[int, Sequence[BackpressureRule]] = _NO_RULES,
    ) -> None:
        self.mask = mask
        self.recipients = recipients
        self.backpressure_rules = rules
        self.fan_out = len(recipients)

    def without(self, outbox: Outbox, client: int) -> "Route":
        """The same route for a publisher that does not want its own messages back."""
        recipients = tuple(
            other
            for other in self.recipients
            if (other.outbox if isinstance(other, ProcessLifetimeGuard) else other) is not outbox
        )
        if len(recipients) == len(self.recipients) and not self.backpressure_rules:
            return self
        others = [
            rule
            for rules in self.backpressure_rules.values()
            for rule in rules
            if rule.client != client
        ]
        return Route(self.mask, recipients, _by_whom(others))


class Router:
    """One worker's view of all subscriptions. `lets_through` tells whether a key may be delivered
    to a client that these access rules concern."""

    def __init__(
        self,
        worker: int,
        dialect: Dialect,
        limits: Limits,
        lets_through: Callable[[int, bytes], bool] = lambda _rules, _key: True,
    ) -> None:
        self._lets_through = lets_through
        self._worker = worker
        self._dialect = dialect
        self._limits = limits
        self._index: PatternIndex[Outbox | BackpressureRule | int] = PatternIndex(dialect)
        self.cache: RouteCache[Route] = RouteCache(self._resolve, limits.route_cache_bytes_max)
        self._secret_recipients: dict[Outbox, SecretRecipient] = {}
        self._rules: dict[Outbox, int] = {}
        """The rules about subscribing, of clients whom any concern."""
        self._interest: Counter[bytes] = Counter()
        self._remote: dict[int, set[bytes]] = {}
        self._remote_rules: dict[int, dict[tuple[int, bytes], _RemoteRule]] = {}
        """By worker, then by client and what was packed: a client whose rule changes has two for
        a moment."""

    def route(self, key: bytes) -> Route:
        """The route of `key`. Raises ClientFault for a key that may not be used."""
        return self.cache.recent.get(key) or self.cache.miss(key)

    def _resolve(self, key: bytes) -> tuple[Route, int]:
        check_key(key, self._dialect, self._limits)
        mask = 0
        local = []
        rules = []
        for subscriber in self._index.match(key):
            if isinstance(subscriber, int):
                mask |= 1 << subscriber
            elif isinstance(subscriber, BackpressureRule):
                if self._lets_through(subscriber.profile.subscribe, key):
                    rules.append(subscriber)
            else:
                local.append(subscriber)
        if self._rules:
            let_through = self._lets_through
            local = [outbox for outbox in local if let_through(self._rules.get(outbox, 0), key)]
        bytes_taken = _ROUTE_BYTES + _POINTER_BYTES * (len(local) + len(rules))
        if is_reserved(key, self._dialect):
            named = ids_of(key)
            meant = [rule for rule in rules if rule.may_be_meant(named)]
            return Route(mask, self._entitled(named, local), _by_whom(meant)), bytes_taken
        return Route(mask, tuple(local), _by_whom(rules)), bytes_taken

    def matching(self, key: bytes) -> list[Outbox]:
        """Of this worker's clients, those that have a pattern that matches, whatever else is said
        about them. Raises ClientFault for a key that may not be used."""
        check_key(key, self._dialect, self._limits)
        return [found for found in self._index.match(key) if isinstance(found, Outbox)]

    def _entitled(
        self, named: Ids, outboxes: list[Outbox]
    ) -> tuple[Outbox | ProcessLifetimeGuard, ...]:
        """Of those whose patterns may match a secret key, those whose id is each one it names."""
        entitled = []
        for outbox in outboxes:
            owner = self._secret_recipients.get(outbox)
            recipient = None if owner is None else owner.recipient(named)
            if recipient is not None:
                entitled.append(recipient)
        return tuple(entitled)

    def admit(self, outbox: Outbox, owner: SecretRecipient) -> None:
        """From now on `outbox` may receive the secret messages that name ids of `owner`."""
        self._secret_recipients[outbox] = owner

    def restrict(self, outbox: Outbox, rules: int) -> None:
        """`outbox` is to receive only what these rules let through, 0 being none: as soon as
        something leads to it, or `forget_routes` was called."""
        if rules:
            self._rules[outbox] = rules
        else:
            self._rules.pop(outbox, None)

    def forget_routes(self, bytes_max: int) -> None:
        """Find all routes anew, and remember them within another bound: rules have changed."""
        self.cache.limit(bytes_max)

    def dismiss(self, outbox: Outbox) -> None:
        """`outbox`, which takes nothing any more, receives no secret messages either."""
        del self._secret_recipients[outbox]
        self._rules.pop(outbox, None)

    def subscription_bytes(self, pattern: bytes) -> int:
        """What a pattern makes every worker remember, as `client_subscription_bytes_max` counts."""
        segments = pattern.count(self._dialect.separator) + 1
        return len(pattern) + _BYTES_PER_SEGMENT * segments

    def gain_interest(self, pattern: bytes) -> bool:
        """Count one more occurrence of `pattern` here; whether it is this worker's first."""
        self._interest[pattern] += 1
        return self._interest[pattern] == 1

    def lose_interest(self, pattern: bytes, count: int = 1) -> bool:
        """Count fewer occurrences of `pattern` here; whether those were this worker's last."""
        self._interest[pattern] -= count
        if self._interest[pattern]:
            return False
        del self._interest[pattern]
        return True

    def add(self, pattern: bytes, subscriber: Outbox | BackpressureRule) -> None:
        """From now on `subscriber` is in the routes of what matches `pattern`."""
        self._change(pattern, subscriber, add=True)

    def remove(self, pattern: bytes, subscriber: Outbox | BackpressureRule) -> None:
        """Take one occurrence of `pattern` back."""
        self._change(pattern, subscriber, add=False)

    def _change(
        self, pattern: bytes, subscriber: Outbox | BackpressureRule | int, *, add: bool
    ) -> None:
        path = parse_pattern(widened(pattern), self._dialect)
        if path is None:
            return
        change = self._index.add if add else self._index.remove
        if change(path, subscriber):
            self.cache.invalidate(path, pattern)

    # -- what other workers journalled ---------------------------------------------------------
    def apply(self, record: Record) -> None:
        """Take over what another worker journalled.

        A worker that begins after a compaction may meet interest whose edge is no longer there, and
        the end of interest that it never met.
        """
        if record.worker == self._worker:
            return
        known = self._remote.setdefault(record.worker, set())
        if record.kind == SUBSCRIBED and record.pattern not in known:
            known.add(record.pattern)
            self._change(record.pattern, record.worker, add=True)
        elif record.kind == UNSUBSCRIBED and record.edge and record.pattern in known:
            known.remove(record.pattern)
            self._change(record.pattern, record.worker, add=False)
        elif record.kind == HOLDS:
            self._hold(record)
        elif record.kind == HOLDS_NO_MORE:
            self._hold_no_more(record)
        elif record.kind == WORKER_RESET:
            for pattern in known:
                self._change(pattern, record.worker, add=False)
            known.clear()
            for remote in self._remote_rules.pop(record.worker, {}).values():
                for pattern in remote.patterns:
                    self._change(pattern, remote.rule, add=False)

    def _hold(self, record: Record) -> None:
        rule, pattern = unpack_rule(record.client, record.pattern)
        rules = self._remote_rules.setdefault(record.worker, {})
        remote = rules.setdefault((record.client, rule.pack()), _RemoteRule(rule))
        if pattern not in remote.patterns:
            remote.patterns.add(pattern)
            self._change(pattern, remote.rule, add=True)

    def _hold_no_more(self, record: Record) -> None:
        rule, pattern = unpack_rule(record.client, record.pattern)
        rules = self._remote_rules.get(record.worker, {})
        which = (record.client, rule.pack())
        remote = rules.get(which)
        if remote is not None and pattern in remote.patterns:
            remote.patterns.remove(pattern)
            self._change(pattern, remote.rule, add=False)
            if not remote.patterns:
                del rules[which]


class _RemoteRule:
    """A client of another worker that may hold publishers, and the patterns by which it does."""

    __slots__ = ("patterns", "rule")

    def __init__(self, rule: BackpressureRule) -> None:
        self.rule = rule
        self.patterns: set[bytes] = set()
