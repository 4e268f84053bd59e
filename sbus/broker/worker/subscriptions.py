"""The subscriptions of a worker's clients: quotas, the journal's records and the index agree.

Every change is journalled by a step of the sequencer and takes effect in that step. Changes of many
patterns at once (a client leaves, or its rule is added) are made piece by piece in *background
steps* between turns. Records that only take back wait here until the table has room for them, in
the order in which they must be journalled; nothing else is journalled before them.

    patterns of a session = its records that hold = its places in the index
    patterns with a rule of a session <= its patterns
    all of its patterns have a rule  ->  so they do ever after, while the table has a reserve
    the earlier rule of a pattern  ->  the rule of its session, after the background steps
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice

from sbus.broker.delivery.backpressure import Backpressure, BackpressureRule
from sbus.broker.ipc.worker_protocol import SettingsApplied
from sbus.broker.worker.background_steps import BackgroundSteps
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.router import Router
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.subscription_quotas import SubscriptionQuotas
from sbus.broker.worker.watched_processes import WatchedProcesses
from sbus.errors import Refusal
from sbus.protocol.secret_keys import begins_secret
from sbus.shared.subscription_table import (
    CLIENT_GONE,
    RULE_ADDED,
    RULE_REMOVED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    WORKER_RESET,
    Record,
    encode_record,
    own_spelling,
    shared_spelling,
)

_RECORDS_PER_PIECE = 16
"""Of a background step, which comes between turns that cost some 256 units."""


class Subscriptions:
    """Of one worker's clients."""

    def __init__(self, context: WorkerContext, sequencer: Sequencer, router: Router) -> None:
        self._context = context
        self._sequencer = sequencer
        self._router = router
        self.quotas = SubscriptionQuotas(context, router)
        self._unrecorded: deque[bytes] = deque()
        """Records that wait for room in the table."""
        self._background = BackgroundSteps()
        self._unsettled: set[Session] = set()
        """Clients whose back-pressure rule is not yet journalled with all of their patterns."""
        self._rule_changes = 0
        """Back-pressure rules that were replaced and that some worker may still obey."""
        self._settings_applied: list[int] = []
        """Settings to report as applied once there are no such rules."""
        self._watched = WatchedProcesses()

    def start(self) -> None:
        """Begin to serve in this worker's place in the shared memory, without clients."""
        reset = encode_record(Record(WORKER_RESET, True, self._context.worker, 0))
        if not self._sequencer.start(reset):
            self._unrecorded.append(reset)

    def restore(self, session: Session, journalled: Mapping[bytes, int]) -> None:
        """Give a client patterns that are journalled as its own already."""
        for pattern, count in journalled.items():
            own, shared = own_spelling(pattern), shared_spelling(pattern)
            if begins_secret(own):
                with suppress(Refusal):  # then its process counts as ended
                    self.watch_again(session)
            self.quotas.count(session, own, count)
            for _ in range(count):
                self._router.gain_interest(shared)
                self._router.add(own, session.outbox)

    def take_back(self, records: Iterable[Record]) -> None:
        """Journal these records, which only take back, as soon as there is room."""
        self._unrecorded.extend(map(encode_record, records))
        self.flush_records()

    def add_client(self, session: Session) -> None:
        """From now on the client can have patterns."""
        rules = session.profile.subscribe
        self._router.add_client(session.outbox, session.secret_recipient, rules)

    def apply_profile(self, session: Session) -> None:
        """A client's profile has changed: it receives, and holds publishers back, as that says."""
        self._router.set_access_rules(session.outbox, session.profile.subscribe)
        if session.backpressure is not None:
            rule = session.backpressure.rule.changed_to(session.profile)
            if rule is not None:
                self.replace_rule(session, rule)

    def clear_routes(self) -> None:
        """Access rules or limits have changed: look up all routes again."""
        self._router.clear_cache(self._context.settings.limits.route_cache_bytes_max)

    def remove_client(self, session: Session) -> None:
        """A client leaves: remove all of its subscriptions, piece by piece. A record of that is
        journalled first, because it fits when nothing else does, and has the next compaction make
        room. Until all are removed they are routes to a closed outbox.
        """
        self._router.remove_client(session.outbox)
        self._watched.discard(session.secret_recipient)
        self._unsettled.discard(session)
        if session.patterns:
            self._unrecorded.append(self._encode(CLIENT_GONE, session, b"", edge=False))
            self._background.add(session.account_place, self._remove_patterns(session))

    def watch_process(self, session: Session, pattern: bytes) -> None:
        """Make a client ready for a secret pattern. Raises Refusal, Misbehaviour."""
        recipient = session.secret_recipient
        recipient.check_ids(pattern)
        self._watched.add(recipient, session.account_place)
        recipient.check_process(pattern)

    def watch_again(self, session: Session) -> None:
        """Make a client ready for secret patterns that was so before. Raises Refusal."""
        self._watched.restore(session.secret_recipient, session.account_place)

    def prepare_patterns(self, session: Session, changes: Mapping[bytes, int]) -> Iterator[bool]:
        """Background steps that give a client so many more of its patterns, or fewer, before it is
        served here. Raises Refusal when there is no room for them."""
        for pattern, change in changes.items():
            for _ in range(-change):
                self._remove(session, pattern, 1, has_left=False)
                yield True
        left = deque(pattern for pattern, change in changes.items() for _ in range(change))
        while left:
            piece = [left.popleft() for _ in range(min(len(left), _RECORDS_PER_PIECE))]
            while not self._add_piece(session, piece):
                yield False
            yield True
        if session.backpressure is not None:
            self.add_rule(session)

    def _add_piece(self, session: Session, patterns: list[bytes]) -> bool:
        """Journal and apply some patterns whose place in the order does not matter, because nothing
        is delivered to the client yet; False: try again when there is room."""
        if not self.flush_records():
            return False
        shared_patterns = [self._router.shared_pattern(pattern) for pattern in patterns]
        edges = map(self._router.gain_interest, shared_patterns)
        records = [
            self._encode(SUBSCRIBED, session, self._router.journalled_pattern(pattern), edge=edge)
            for pattern, edge in zip(patterns, edges, strict=True)
        ]
        data = b"".join(records)
        if not self._sequencer.journal(data):
            for shared in shared_patterns:
                self._router.lose_interest(shared)
            if self._sequencer.is_table_full(data):
                raise Refusal("table-full", "the bus has no room for more subscriptions")
            return False
        for pattern in patterns:
            self.quotas.count(session, pattern, 1)
            self._router.add(pattern, session.outbox)
        return True

    # -- steps ---------------------------------------------------------------------------------
    def subscribe(self, session: Session, pattern: bytes) -> bool:
        """Journal and apply one more occurrence of a pattern; False: try again when woken.

        Raises Refusal when there is no room, or none in the share of the client or of its user, and
        Misbehaviour for another's secret pattern.
        """
        if begins_secret(pattern):
            self.watch_process(session, pattern)
        self.quotas.check(session, pattern)
        if not self.flush_records():
            return False
        shared = self._router.shared_pattern(pattern)
        edge = self._router.gain_interest(shared)
        journalled = self._router.journalled_pattern(pattern)
        data = self._encode(SUBSCRIBED, session, journalled, edge=edge)
        adds_rule = session.backpressure is not None and pattern not in session.rule_by_pattern
        if adds_rule:
            data += self._encode_new_rule(session, pattern)
        edge = edge or adds_rule
        if not self._sequencer.journal_step(session, data, edge=edge, frees=False):
            self._router.lose_interest(shared)
            if self._sequencer.is_table_full(data):
                raise Refusal("table-full", "the bus has no room for more subscriptions")
            return False
        self.quotas.count(session, pattern, 1)
        self._router.add(pattern, session.outbox)
        if adds_rule:
            self._index_rule(session, pattern)
        return True

    def unsubscribe(self, session: Session, pattern: bytes) -> bool:
        """Take back one occurrence of a pattern that the client has; False: try again."""
        if not self.flush_records():
            return False
        shared = self._router.shared_pattern(pattern)
        edge = self._router.lose_interest(shared)
        journalled = self._router.journalled_pattern(pattern)
        data = self._encode(UNSUBSCRIBED, session, journalled, edge=edge)
        removes_rule = session.patterns[pattern] == 1 and pattern in session.rule_by_pattern
        if removes_rule:
            data += self._encode_end_of_rule(session, pattern)
        edge = edge or removes_rule
        if not self._sequencer.journal_step(session, data, edge=edge, frees=True):
            self._router.gain_interest(shared)
            return False
        self.quotas.count(session, pattern, -1)
        self._router.remove(pattern, session.outbox)
        if removes_rule:
            self._unindex_rule(session, pattern)
        return True

    # -- background steps ----------------------------------------------------------------------
    def add_background_steps(self, account_place: int, steps: Iterator[bool]) -> None:
        """Have a change made for a client of this user, step by step between turns."""
        self._background.add(account_place, steps)

    def add_rule(self, session: Session) -> None:
        """Journal a client's back-pressure rule with all of its patterns, from now on. That lasts
        until the client leaves, whatever it chooses: without stalling it holds nobody."""
        if session.patterns:
            self._unsettled.add(session)
            self._background.add(session.account_place, self._journal_rule(session))

    def replace_rule(self, session: Session, rule: BackpressureRule) -> None:
        """Replace the rule by which a client holds publishers, pattern by pattern: without a gap,
        and in a full table."""
        _backpressure(session).replace_rule(rule)
        session.outbox.decide_anew()
        self._rule_changes += 1
        self._unsettled.add(session)
        self._background.add(session.account_place, self._replace_rules(session))

    def report_applied(self, settings: int) -> None:
        """Report these settings as applied once no worker obeys a rule that was replaced."""
        self._settings_applied.append(settings)
        self._report_if_applied()

    def is_settled(self, session: Session) -> bool:
        """Whether a client's back-pressure rule is journalled with all of its patterns.

        Raises Refusal when the table has no room for that.
        """
        if session in self._unsettled:
            return False
        if len(session.rule_by_pattern) < len(session.patterns):
            raise Refusal("table-full", "the bus has no room to hold publishers by all patterns")
        return True

    def make_background_step(self) -> tuple[int, int] | None:
        """Make one step of the changes in progress. Returns whose it was, and its cost; None when
        there is none to make now."""
        made = self._background.make_one()
        if made is not None:
            self.flush_records()
        return made

    def retry(self) -> None:
        """There may be room in the table again."""
        self.flush_records()
        self._background.retry()

    def _remove_patterns(self, session: Session) -> Iterator[bool]:
        while session.patterns:
            left = _RECORDS_PER_PIECE
            while left and session.patterns:
                pattern, count = next(iter(session.patterns.items()))
                left -= self._remove(session, pattern, min(count, left), has_left=True)
            yield True

    def _remove(self, session: Session, pattern: bytes, count: int, *, has_left: bool) -> int:
        """Remove some occurrences of a client's pattern; returns how many. That a client has left
        is journalled already."""
        self.quotas.count(session, pattern, -count)
        for _ in range(count):
            self._router.remove(pattern, session.outbox)
        shared = self._router.shared_pattern(pattern)
        edge = self._router.lose_interest(shared, count)
        if edge or not has_left:
            journalled = shared if has_left else self._router.journalled_pattern(pattern)
            self._unrecorded.append(self._encode(UNSUBSCRIBED, session, journalled, edge=edge))
        if pattern not in session.patterns:
            self._remove_rule(session, pattern)
        return count

    def _journal_rule(self, session: Session) -> Iterator[bool]:
        """Until this is done, a client that chose `block` is not read any further."""
        rule, rules = _rule(session), session.rule_by_pattern
        left, count = list(session.patterns), _RECORDS_PER_PIECE
        while left and session in self._unsettled and _rule(session) is rule:
            piece = [
                pattern
                for pattern in left[-count:]
                if pattern in session.patterns and rules.get(pattern) is not rule
            ]
            replaces = all(pattern in rules for pattern in piece)
            may_use_reserve = replaces and self._sequencer.has_table_reserve()
            data = b"".join(self._encode_new_rule(session, pattern) for pattern in piece)
            has_room = True
            if not piece or self._sequencer.journal(data, frees=may_use_reserve):
                for pattern in piece:
                    self._index_rule(session, pattern)
                del left[-count:]
            elif count > 1:
                count = 1  # they may fit one at a time
            elif may_use_reserve or not self._sequencer.is_table_full(data):
                has_room, count = False, _RECORDS_PER_PIECE
            elif replaces:
                self._remove_rule(session, left.pop())
            else:  # nor is there room for any other new one
                left = [pattern for pattern in left if pattern in rules]
            yield has_room
        if _rule(session) is rule:
            self._unsettled.discard(session)
            self._context.wake()

    def _remove_rule(self, session: Session, pattern: bytes) -> None:
        """Take back the rule that is journalled with a pattern, if there is one."""
        if pattern in session.rule_by_pattern:
            self._unrecorded.append(self._encode_end_of_rule(session, pattern))
            self._unindex_rule(session, pattern)

    def _replace_rules(self, session: Session) -> Iterator[bool]:
        """Journal a client's new rule in place of earlier ones, while the client is there."""
        yield from self._journal_rule(session)
        while not self.flush_records():
            yield False
        _backpressure(session).release_waiters()
        self._rule_changes -= 1
        self._report_if_applied()

    def _report_if_applied(self) -> None:
        if not self._rule_changes:
            for settings in self._settings_applied:
                self._context.link.send(SettingsApplied(settings))
            self._settings_applied.clear()

    # -- pieces --------------------------------------------------------------------------------
    def flush_records(self) -> bool:
        """Journal the records that wait for room; False when not all of them fit yet."""
        while self._unrecorded:
            piece = list(islice(self._unrecorded, _RECORDS_PER_PIECE))
            if not self._sequencer.journal(b"".join(piece), frees=True):
                if len(piece) == 1 or not self._sequencer.journal(piece[0], frees=True):
                    return False
                del piece[1:]
            for _ in piece:
                self._unrecorded.popleft()
        return True

    def _index_rule(self, session: Session, pattern: bytes) -> None:
        """Let a client's rule hold by a pattern, in place of an earlier one."""
        rules, rule = session.rule_by_pattern, _rule(session)
        if pattern in rules:
            self._router.remove(pattern, rules[pattern])
        rules[pattern] = rule
        self._router.add(pattern, rule)

    def _unindex_rule(self, session: Session, pattern: bytes) -> None:
        self._router.remove(pattern, session.rule_by_pattern.pop(pattern))
        _backpressure(session).release_waiters()

    def _encode(self, kind: int, session: Session, pattern: bytes, *, edge: bool) -> bytes:
        return encode_record(Record(kind, edge, self._context.worker, session.client, pattern))

    def _encode_new_rule(self, session: Session, pattern: bytes) -> bytes:
        """That the client's rule holds by a pattern, and an earlier one does not any more."""
        data = self._encode_rule(RULE_ADDED, session, _rule(session), pattern)
        if pattern in session.rule_by_pattern:
            data += self._encode_end_of_rule(session, pattern)
        return data

    def _encode_end_of_rule(self, session: Session, pattern: bytes) -> bytes:
        rule = session.rule_by_pattern[pattern]
        return self._encode_rule(RULE_REMOVED, session, rule, pattern)

    def _encode_rule(
        self, kind: int, session: Session, rule: BackpressureRule, pattern: bytes
    ) -> bytes:
        return self._encode(kind, session, rule.pack() + pattern, edge=True)


def _backpressure(session: Session) -> Backpressure:
    assert session.backpressure is not None, "it never had back-pressure"
    return session.backpressure


def _rule(session: Session) -> BackpressureRule:
    """By which a client holds publishers now."""
    return _backpressure(session).rule
