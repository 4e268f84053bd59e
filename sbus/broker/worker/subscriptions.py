"""What a worker's clients listen to: quotas, the journal's records and the index, kept together.

Every change is journalled by a step of the sequencer and takes effect at the instant of that. Much
at once (a client that leaves, one that begins to block) is done piece by piece as a *chore*,
between turns. Records that only take back are queued here until the table has room for them, in the
order in which they must be journalled; nothing else is journalled before them.

    patterns of a session  =  its records that hold  =  its places in the index
    holding patterns of a session  ⊆  its patterns;  equal, once its chores are done, if it blocks
    what an earlier rule of a session held  →  nothing, once its chores are done

This module does not know how a step gets its place in the order.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from sbus.broker.delivery.backpressure import Backpressure, BackpressureRule
from sbus.broker.worker.router import Router
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.errors import QuotaReached, Refusal
from sbus.limits import Limits
from sbus.shared.accounts import SUBSCRIPTION_BYTES, SUBSCRIPTIONS
from sbus.shared.subscription_table import (
    CLIENT_GONE,
    HOLDS,
    HOLDS_NO_MORE,
    SUBSCRIBED,
    UNSUBSCRIBED,
    Record,
    encode_record,
)

_RECORDS_PER_PIECE = 64


class Subscriptions:
    """One worker's. `unrecorded` is what has to be journalled before anything else; `on_settled`
    is called when all patterns of a client that blocks are known to hold publishers."""

    def __init__(
        self,
        worker: int,
        sequencer: Sequencer,
        router: Router,
        limits: Limits,
        unrecorded: bytes,
        on_settled: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._sequencer = sequencer
        self._router = router
        self.client_bytes_max = limits.client_subscription_bytes_max
        self._unrecorded: deque[bytes] = deque([unrecorded] if unrecorded else [])
        self._chores: deque[Iterator[bool]] = deque()
        self._stuck: list[Iterator[bool]] = []
        self._unsettled: set[Session] = set()
        self._changing = 0
        """Back-pressure rules that not all workers know to be over."""
        self._on_changed: list[Callable[[], None]] = []
        self._on_settled = on_settled

    # -- steps ---------------------------------------------------------------------------------
    def subscribe(self, session: Session, pattern: bytes) -> bool:
        """Journal and apply one occurrence of a pattern; False: try again when woken.

        Raises Refusal when the table is full, or the share of the client or of its user.
        """
        charge = self._router.subscription_bytes(pattern)
        self._check_quotas(session, charge)
        if not self.flush_records():
            return False
        edge = self._router.gain_interest(pattern)
        data = self._encode(SUBSCRIBED, session, pattern, edge=edge)
        holds = session.backpressure is not None and pattern not in session.holding_patterns
        if holds:
            data += self._encode_holding(HOLDS, session, _rule(session), pattern)
        if not self._sequencer.record(data, edge=edge or holds):
            self._router.lose_interest(pattern)
            if self._sequencer.is_table_full():
                raise Refusal("table-full", "the bus has no room for more subscriptions")
            return False
        session.patterns[pattern] = session.patterns.get(pattern, 0) + 1
        self._count(session, 1, charge)
        self._router.add(pattern, session.outbox)
        if holds:
            self._hold(session, pattern)
        return True

    def unsubscribe(self, session: Session, pattern: bytes) -> bool:
        """Take back one occurrence of a pattern that the client has; False: try again."""
        if not self.flush_records():
            return False
        edge = self._router.lose_interest(pattern)
        data = self._encode(UNSUBSCRIBED, session, pattern, edge=edge)
        holds_no_more = session.patterns[pattern] == 1 and pattern in session.holding_patterns
        if holds_no_more:
            data += self._encode_holding(HOLDS_NO_MORE, session, _rule(session), pattern)
        if not self._sequencer.record(data, edge=edge or holds_no_more, frees=True):
            self._router.gain_interest(pattern)
            return False
        self._count(session, -1, -self._router.subscription_bytes(pattern))
        session.patterns[pattern] -= 1
        if not session.patterns[pattern]:
            del session.patterns[pattern]
        self._router.remove(pattern, session.outbox)
        if holds_no_more:
            self._hold_no_more(session, pattern)
        return True

    # -- chores --------------------------------------------------------------------------------
    def forget(self, session: Session) -> None:
        """Drop all subscriptions of a client that has left, piece by piece.

        That the client is gone is journalled first, in a few bytes that fit when nothing else does:
        the next compaction drops its patterns by it, and makes room for the edges. Until they are
        all dropped they are routes to an outbox that takes nothing, which harms nobody.
        """
        self._unsettled.discard(session)
        if session.patterns:
            self._unrecorded.append(self._encode(CLIENT_GONE, session, b"", edge=False))
            self._chores.append(self._drop_patterns(session))

    def begin_holding(self, session: Session) -> None:
        """By all patterns of a client that has backpressure from now on, publishers may be held.

        They stay so until it leaves, whatever it chooses: it holds nobody while it does not stall.
        """
        if session.patterns:
            self._unsettled.add(session)
            self._chores.append(self._hold_by_patterns(session))

    def change_rule(self, session: Session, rule: BackpressureRule) -> None:
        """Have publishers held by this one from now on, of a client that held them by another. That
        one goes when all know of this one, so that there is no gap."""
        backpressure = _backpressure(session)
        old, backpressure.rule = backpressure.rule, rule
        held, session.holding_patterns = session.holding_patterns, set()
        self._unsettled.discard(session)
        self.begin_holding(session)
        self._changing += 1
        self._chores.append(self._drop_holding(session, old, held))

    def when_changed(self, on_changed: Callable[[], None]) -> None:
        """Call this once no worker goes by a back-pressure rule that was changed."""
        self._on_changed.append(on_changed)
        self._tell_if_changed()

    def is_settled(self, session: Session) -> bool:
        """Whether by all patterns of a client that blocks publishers are held.

        Raises Refusal when there was no room in the table for that.
        """
        if session in self._unsettled:
            return False
        if len(session.holding_patterns) < len(session.patterns):
            raise Refusal("table-full", "the bus has no room to hold publishers by all patterns")
        return True

    def do_a_chore(self) -> bool:
        """Do a piece of what is to be done; False when there is nothing that can be done now."""
        if not self._chores:
            return False
        chore = self._chores[0]
        can_go_on = next(chore, None)
        if not can_go_on:
            self._chores.popleft()
        if can_go_on is False:
            self._stuck.append(chore)
        self.flush_records()
        return True

    def retry(self) -> None:
        """There may be room in the table again."""
        self.flush_records()
        self._chores.extend(self._stuck)
        self._stuck.clear()

    def _drop_patterns(self, session: Session) -> Iterator[bool]:
        while session.patterns:
            left = _RECORDS_PER_PIECE
            while left and session.patterns:
                pattern, count = next(iter(session.patterns.items()))
                left -= self._drop(session, pattern, min(count, left))
            yield True

    def _drop(self, session: Session, pattern: bytes, count: int) -> int:
        """Drop some occurrences of a pattern of a client that has left; returns how many."""
        self._count(session, -count, -count * self._router.subscription_bytes(pattern))
        for _ in range(count):
            self._router.remove(pattern, session.outbox)
        if self._router.lose_interest(pattern, count):
            self._unrecorded.append(self._encode(UNSUBSCRIBED, session, pattern, edge=True))
        session.patterns[pattern] -= count
        if not session.patterns[pattern]:
            del session.patterns[pattern]
            if pattern in session.holding_patterns:
                self._hold_no_more(session, pattern)
                self._unrecorded.append(
                    self._encode_holding(HOLDS_NO_MORE, session, _rule(session), pattern)
                )
        return count

    def _hold_by_patterns(self, session: Session) -> Iterator[bool]:
        """Until it is done, a client that asked to block is not read any further."""
        patterns = iter(list(session.patterns))
        rule = _rule(session)
        while session in self._unsettled and _rule(session) is rule:
            next_patterns = list(islice(patterns, _RECORDS_PER_PIECE))
            piece = [
                pattern
                for pattern in next_patterns
                if pattern in session.patterns and pattern not in session.holding_patterns
            ]
            data = b"".join(
                self._encode_holding(HOLDS, session, rule, pattern) for pattern in piece
            )
            while piece and not self._sequencer.note(data):
                if self._sequencer.is_table_full():
                    piece.clear()
                    next_patterns.clear()
                    break
                yield False
                if session not in self._unsettled or _rule(session) is not rule:
                    return
            for pattern in piece:
                self._hold(session, pattern)
            if not next_patterns:
                self._unsettled.remove(session)
                self._on_settled()
            yield True

    def _drop_holding(
        self, session: Session, rule: BackpressureRule, patterns: set[bytes]
    ) -> Iterator[bool]:
        """Take back what another rule of a client held, whether or not it is still there."""
        while patterns:
            for pattern in list(islice(patterns, _RECORDS_PER_PIECE)):
                patterns.remove(pattern)
                self._router.remove(pattern, rule)
                self._unrecorded.append(self._encode_holding(HOLDS_NO_MORE, session, rule, pattern))
            yield True
        while not self.flush_records():
            yield False
        _backpressure(session).release_waiters()
        self._changing -= 1
        self._tell_if_changed()

    def _tell_if_changed(self) -> None:
        if not self._changing:
            tell, self._on_changed = self._on_changed, []
            for on_changed in tell:
                on_changed()

    # -- pieces --------------------------------------------------------------------------------
    def flush_records(self) -> bool:
        """Journal what only takes back, piece by piece; False when not all of it fits yet."""
        while self._unrecorded:
            piece = list(islice(self._unrecorded, _RECORDS_PER_PIECE))
            if not self._sequencer.note(b"".join(piece), frees=True):
                if len(piece) == 1 or not self._sequencer.note(piece[0], frees=True):
                    return False
                del piece[1:]
            for _ in piece:
                self._unrecorded.popleft()
        return True

    def _check_quotas(self, session: Session, charge: int) -> None:
        if session.subscription_bytes + charge > self.client_bytes_max:
            raise Refusal("too-many-patterns", "one client has no room for more subscriptions")
        for limit, more, client_use in (
            (SUBSCRIPTIONS, 1, session.subscriptions),
            (SUBSCRIPTION_BYTES, charge, session.subscription_bytes),
        ):
            if not session.account.has_room(limit, more, client_use):
                raise QuotaReached(
                    "too-many-patterns", "your user has no room for more subscriptions", limit
                )

    def _count(self, session: Session, subscriptions: int, charge: int) -> None:
        session.subscriptions += subscriptions
        session.subscription_bytes += charge
        session.account.count(SUBSCRIPTIONS, subscriptions)
        session.account.count(SUBSCRIPTION_BYTES, charge)

    def _hold(self, session: Session, pattern: bytes) -> None:
        session.holding_patterns.add(pattern)
        self._router.add(pattern, _rule(session))

    def _hold_no_more(self, session: Session, pattern: bytes) -> None:
        session.holding_patterns.remove(pattern)
        self._router.remove(pattern, _rule(session))
        _backpressure(session).release_waiters()

    def _encode(self, kind: int, session: Session, pattern: bytes, *, edge: bool) -> bytes:
        return encode_record(Record(kind, edge, self._worker, session.id, pattern))

    def _encode_holding(
        self, kind: int, session: Session, rule: BackpressureRule, pattern: bytes
    ) -> bytes:
        return self._encode(kind, session, rule.pack() + pattern, edge=True)


def _backpressure(session: Session) -> Backpressure:
    assert session.backpressure is not None, "it never blocked"
    return session.backpressure


def _rule(session: Session) -> BackpressureRule:
    """By which a client holds publishers now."""
    return _backpressure(session).rule
