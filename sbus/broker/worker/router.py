"""The router: where a message goes, as one worker knows it.

The pattern index holds the outboxes of this worker's clients, the other workers that have a client
for the pattern, and the back-pressure rules of clients of any worker. A route is what the index
finds for one key. It is kept in the route cache until a change of the index affects it.

For secret keys the index finds too much: it has a `*` for an empty id of a pattern, because
other workers do not know whose pattern it is. So each secret recipient that is found is asked
whether the ids that the key names are its own. Likewise, clients to whom access rules about
subscribing apply receive a key only if the rules allow it.

Some keys are no client's: the log entries that hand clients over lead to this worker itself, and a
NUL behind a key marks a message that only the bus publishes.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter

from sbus.broker.config.access_policy import RuleSet
from sbus.broker.delivery.backpressure import BackpressureRule, unpack_rule
from sbus.broker.delivery.fan_out_times import Recipient
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.secret_recipient import (
    LookInTime,
    ProcessLifetimeGuard,
    SavedIds,
    SecretRecipient,
)
from sbus.compiled import RouteRecord
from sbus.limits import Limits
from sbus.protocol.keys import (
    Dialect,
    PatternPath,
    check_key,
    format_path,
    parse_pattern,
)
from sbus.protocol.packets import NUL
from sbus.protocol.secret_keys import Ids, ids_of, is_secret_key, widened
from sbus.routing.index import PatternIndex
from sbus.routing.route_cache import RouteCache
from sbus.shared.log_block import HAND_OVER
from sbus.shared.operation_times import OperationTimes
from sbus.shared.subscription_table import (
    RULE_ADDED,
    RULE_REMOVED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    WORKER_RESET,
    Record,
    shared_spelling,
)

_PATHS_REMEMBERED = 16
_NOT_CACHED = 1 << 62
"""The bytes of a route that is not to be cached."""
_ROUTE_BYTES = 120
_POINTER_BYTES = 8
_BYTES_PER_SEGMENT = 64
_LOOKUP_STEPS = 50
_MEMBERS_PER_STEP = 4
_STEPS_PER_DELIVERY = 10
"""What looking a route up takes besides the match, what a match collects, and what a delivery
takes, each as it compares with a step of a match. A delivery to a backlog takes twice as long."""


_slot_at = attrgetter("slot_at")
_NO_RULES: Mapping[int, Sequence[BackpressureRule]] = {}


def _by_held_user(rules: list[BackpressureRule]) -> Mapping[int, Sequence[BackpressureRule]]:
    """Rules by the account of the user whose publishers they may hold."""
    by_user: dict[int, list[BackpressureRule]] = {}
    for rule in rules:
        by_user.setdefault(rule.holds, []).append(rule)
    return by_user or _NO_RULES


_RemoteRule = tuple[BackpressureRule, set[bytes]]
"""Of a client of another worker, and the patterns by which it holds publishers."""


class Route(RouteRecord):
    """The destinations of one key: other workers as a mask, this worker's clients as recipients.

    `backpressure_rules` are those of clients of any worker that publishers may have to wait for, by
    the account of the user whose publishers those are, or `ANYBODY`."""

    __slots__ = ("fan_out",)

    backpressure_rules: Mapping[int, Sequence[BackpressureRule]]
    recipients: tuple[Recipient, ...]

    def __init__(
        self,
        mask: int,
        recipients: tuple[Recipient, ...],
        rules: Mapping[int, Sequence[BackpressureRule]] = _NO_RULES,
    ) -> None:
        self.mask = mask
        self.recipients = recipients
        self.backpressure_rules = rules
        self.fan_out = len(recipients)

    def without(self, outbox: Outbox, client: int) -> "Route":
        """The route of messages of this client, which does not want them back."""
        recipients = tuple(it for it in self.recipients if it.outbox is not outbox)
        if len(recipients) == len(self.recipients) and not self.backpressure_rules:
            return self
        others = [
            rule
            for rules in self.backpressure_rules.values()
            for rule in rules
            if rule.client != client
        ]
        return Route(self.mask, recipients, _by_held_user(others))


class Router:
    """One worker's view of all subscriptions.

    `may_receive` tells whether a client to whom these access rules apply may receive a key.
    """

    def __init__(
        self,
        worker: int,
        dialect: Dialect,
        limits: Limits,
        may_receive: Callable[[RuleSet, bytes], bool] = lambda _rules, _key: True,
        operations: OperationTimes | None = None,
        look_in_time: LookInTime = lambda _place, look: look(),
    ) -> None:
        self._may_receive = may_receive
        self._operations = operations
        self._worker = worker
        self._dialect = dialect
        self._limits = limits
        self._index: PatternIndex[Outbox | BackpressureRule] = PatternIndex(dialect)
        self.cache: RouteCache[Route] = RouteCache(
            self._look_up_uncached, limits.route_cache_bytes_max
        )
        self._shape_steps = 0
        self._entry_steps = _LOOKUP_STEPS
        self._on_entry_steps: Callable[[int], None] = lambda _: None
        self._arrivals: tuple[Recipient, ...] = ()
        self._secret_recipients: dict[Outbox, SecretRecipient] = {}
        self._saved_ids = SavedIds(look_in_time)
        self._access_rules: dict[Outbox, RuleSet] = {}
        """The access rules about subscribing, for clients to whom any apply."""
        self._interest: Counter[bytes] = Counter()
        self.path_of = lru_cache(_PATHS_REMEMBERED)(self._parse)
        """The path by which a pattern is in the index; None when it can match nothing. A change of
        one subscription needs it several times."""
        self._remote_rules: dict[int, dict[tuple[int, bytes], _RemoteRule]] = {}
        """By worker, then by client and encoded rule: a client whose rule changes has two for a
        moment."""

    def _parse(self, pattern: bytes) -> PatternPath | None:
        return parse_pattern(widened(pattern), self._dialect)

    def look_up(self, key: bytes) -> Route:
        """The route of `key`. Raises ClientFault for a key that may not be used."""
        return self.cache.recent.get(key) or self.cache.look_up(key)

    def set_shape_steps(self, steps: int) -> None:
        """Patterns of one user of this worker may have so many shapes (`Shapes`) that a match takes
        this many steps."""
        self._shape_steps = min(steps, self._limits.user_match_steps_max)
        self._weigh_entries()

    def _weigh_entries(self) -> None:
        index = self._index
        steps = max(index.match_steps_max, self._shape_steps)
        found = min(index.members_max * (1 + steps), index.subscriptions)
        fan_out = min(found, len(self._secret_recipients))
        entry_steps = (
            _LOOKUP_STEPS + steps + found // _MEMBERS_PER_STEP + fan_out * _STEPS_PER_DELIVERY
        )
        if entry_steps != self._entry_steps:
            self._entry_steps = entry_steps
            self._on_entry_steps(entry_steps)

    def watch_entry_steps(self, report: Callable[[int], None]) -> None:
        """Report, now and when it changes, the work that a log entry may be: to look its route up
        and to deliver it, in steps of a match."""
        self._on_entry_steps = report
        report(self._entry_steps)

    def set_arrivals(self, recipient: Recipient) -> None:
        """Give this recipient the log entries that hand clients over to this worker."""
        self._arrivals = (recipient,)

    def _look_up_uncached(self, key: bytes) -> tuple[Route, int]:
        if key == HAND_OVER:
            return Route(0, self._arrivals), _ROUTE_BYTES
        if key.endswith(NUL):
            return self._match(key[:-1])[0], _NOT_CACHED
        check_key(key, self._dialect, self._limits)
        return self._match(key)

    def _match(self, key: bytes) -> tuple[Route, int]:
        began_at = time.perf_counter()
        steps_before = self._index.match_steps_max
        mask, members = self._index.match_all(key)
        if self._index.match_steps_max != steps_before:
            self._weigh_entries()
        if self._operations is not None:
            self._operations.record("match", time.perf_counter() - began_at)
        recipients = []
        rules = []
        for member in members:
            if isinstance(member, BackpressureRule):
                if self._may_receive(member.profile.subscribe, key):
                    rules.append(member)
            else:
                recipients.append(member)
        if self._access_rules:
            access_rules, may_receive = self._access_rules, self._may_receive
            recipients = [it for it in recipients if may_receive(access_rules.get(it, 0), key)]
        recipients.sort(key=_slot_at)  # see `in_flight`
        bytes_taken = _ROUTE_BYTES + _POINTER_BYTES * (len(recipients) + len(rules))
        if is_secret_key(key):
            named = ids_of(key)
            meant = [rule for rule in rules if rule.may_be_meant(named)]
            return Route(mask, self._entitled(named, recipients), _by_held_user(meant)), bytes_taken
        return Route(mask, tuple(recipients), _by_held_user(rules)), bytes_taken

    def matching(self, key: bytes) -> list[Outbox]:
        """This worker's clients that have a matching pattern, whether or not they may receive the
        key. Raises ClientFault for a key that may not be used."""
        check_key(key, self._dialect, self._limits)
        return [found for found in self._index.match(key) if isinstance(found, Outbox)]

    def _entitled(
        self, named: Ids, outboxes: list[Outbox]
    ) -> tuple[Outbox | ProcessLifetimeGuard, ...]:
        """Those of the recipients found for a secret key whose ids are the ones it names."""
        entitled = []
        for outbox in outboxes:
            secret_recipient = self._secret_recipients.get(outbox)
            if secret_recipient is None:
                continue
            recipient = secret_recipient.outbox_for(named, self._saved_ids)
            if recipient is not None:
                entitled.append(recipient)
        return tuple(entitled)

    # -- this worker's clients -----------------------------------------------------------------
    def add_client(self, outbox: Outbox, secret_recipient: SecretRecipient, rules: RuleSet) -> None:
        """From now on `outbox` can have patterns, and receives secret messages that name ids of
        `secret_recipient`."""
        self._secret_recipients[outbox] = secret_recipient
        self.set_access_rules(outbox, rules)

    def set_access_rules(self, outbox: Outbox, rules: RuleSet) -> None:
        """Routes that are looked up from now on lead to `outbox` only as these rules allow."""
        if rules:
            self._access_rules[outbox] = rules
        else:
            self._access_rules.pop(outbox, None)

    def clear_cache(self, bytes_max: int) -> None:
        """Look up all routes again, and keep them within this bound."""
        self.cache.limit(bytes_max)

    def remove_client(self, outbox: Outbox) -> None:
        """`outbox` is closed and receives no secret messages any more. Its patterns may be removed
        later."""
        del self._secret_recipients[outbox]
        self._access_rules.pop(outbox, None)

    def subscription_bytes(self, pattern: bytes) -> int:
        """The bytes of a subscription, as `client_subscription_bytes_max` counts them."""
        segments = pattern.count(self._dialect.separator) + 1
        return len(pattern) + _BYTES_PER_SEGMENT * segments

    def shared_pattern(self, pattern: bytes) -> bytes:
        """The pattern as indices know it: one spelling for all patterns that match the same keys,
        so that interest in it is one bit for each worker."""
        path = self.path_of(pattern)
        if path is None:
            return pattern
        shared = format_path(path, self._dialect)
        return pattern if shared == pattern else shared

    def journalled_pattern(self, pattern: bytes) -> bytes:
        """The shared pattern, and behind it the client's own spelling where that is another."""
        shared = self.shared_pattern(pattern)
        return shared if shared == pattern else b"%b\0%b" % (shared, pattern)

    def gain_interest(self, shared_pattern: bytes) -> bool:
        """Count one more occurrence of a pattern; whether it is this worker's first."""
        self._interest[shared_pattern] += 1
        return self._interest[shared_pattern] == 1

    def has_interest(self, shared_pattern: bytes) -> bool:
        """Whether a client of this worker has a pattern."""
        return shared_pattern in self._interest

    def lose_interest(self, shared_pattern: bytes, count: int = 1) -> bool:
        """Count fewer occurrences of a pattern; whether those were this worker's last."""
        self._interest[shared_pattern] -= count
        if self._interest[shared_pattern]:
            return False
        del self._interest[shared_pattern]
        return True

    def add(self, pattern: bytes, member: Outbox | BackpressureRule) -> None:
        """Put `member` in the routes of all keys that `pattern` matches."""
        self._change(pattern, member, add=True)

    def remove(self, pattern: bytes, member: Outbox | BackpressureRule) -> None:
        """Take one occurrence of `pattern` back."""
        self._change(pattern, member, add=False)

    def _change(self, pattern: bytes, member: Outbox | BackpressureRule, *, add: bool) -> None:
        path = self.path_of(pattern)
        if path is None:
            return
        change = self._index.add if add else self._index.remove
        if change(path, member):
            self.cache.invalidate(path, pattern)
            self._weigh_entries()

    # -- what other workers journalled ---------------------------------------------------------
    def apply(self, record: Record) -> None:
        """Apply a record of another worker.

        After a compaction, a worker that starts may find interest whose edge is no longer there,
        and the end of interest that it did not find. And what a client had that left shortly before
        may not be taken back before the reset of its worker.
        """
        if record.worker == self._worker:
            return
        if record.kind == SUBSCRIBED or (record.kind == UNSUBSCRIBED and record.edge):
            self._change_interest(record)
        elif record.kind == RULE_ADDED:
            self._add_remote_rule(record)
        elif record.kind == RULE_REMOVED:
            self._remove_remote_rule(record)
        elif record.kind == WORKER_RESET:
            if self._index.remove_worker_everywhere(record.worker):
                self.cache.clear()
            for rule, patterns in self._remote_rules.pop(record.worker, {}).values():
                for pattern in patterns:
                    self._change(pattern, rule, add=False)

    def _change_interest(self, record: Record) -> None:
        pattern = shared_spelling(record.pattern)
        path = parse_pattern(pattern, self._dialect)
        if path is None:
            return
        is_gained = record.kind == SUBSCRIBED
        change = self._index.add_worker if is_gained else self._index.remove_worker
        if change(path, record.worker):
            self.cache.invalidate(path, pattern)

    def _add_remote_rule(self, record: Record) -> None:
        rule, pattern = unpack_rule(record.client, record.pattern)
        rules = self._remote_rules.setdefault(record.worker, {})
        rule, patterns = rules.setdefault((record.client, rule.pack()), (rule, set()))
        if pattern not in patterns:
            patterns.add(pattern)
            self._change(pattern, rule, add=True)

    def _remove_remote_rule(self, record: Record) -> None:
        packed, pattern = unpack_rule(record.client, record.pattern)
        rules = self._remote_rules.get(record.worker, {})
        own = (record.client, packed.pack())
        rule, patterns = rules.get(own, (packed, set()))
        if pattern in patterns:
            patterns.remove(pattern)
            self._change(pattern, rule, add=False)
            if not patterns:
                del rules[own]
