"""A worker's answers to the front's questions: its clients, their patterns, and who gets what.

An answer takes a bounded time, because everybody else waits for it, and a bounded number of bytes.
It only looks. This module does not know who asks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from sbus.broker.config.access_policy import KeyRules
from sbus.broker.ipc.queries import (
    ANSWER_BYTES_MAX,
    ActivityQuery,
    ActivityReply,
    Entry,
    ExplanationQuery,
    ExplanationReply,
    MatchingClient,
    Query,
    SubscriptionsQuery,
    SubscriptionsReply,
    encoder,
)
from sbus.broker.worker.router import Router
from sbus.broker.worker.session import Session
from sbus.broker.worker.wait_queue import Reason
from sbus.protocol.admin import EXPLAINED_MAX
from sbus.protocol.admin_results import Activity, WhyNot
from sbus.protocol.keys import Dialect, PatternPath, is_reserved, parse_pattern
from sbus.protocol.secret_keys import ids_of, widened
from sbus.routing.pattern_sets import contains, overlap

_PATTERNS_LOOKED_AT_MAX = 5_000
"""A look takes some 2 us."""
_PATTERNS_SHOWN_MAX = 10
_ENTRY_BYTES = 24


class QueryHandler:
    """Of one worker. `sessions` are its clients by number, in the order in which they came;
    `waits_for` tells why one is not read."""

    def __init__(
        self,
        sessions: Mapping[int, Session],
        router: Router,
        rules: KeyRules,
        dialect: Dialect,
        waits_for: Callable[[Session], Reason | None],
    ) -> None:
        self._sessions = sessions
        self._router = router
        self._rules = rules
        self._dialect = dialect
        self._waits_for = waits_for

    def answer(self, about: Query) -> bytes:
        """The encoded answer to a question."""
        if isinstance(about, ActivityQuery):
            return encoder.encode(self._activities(about.clients))
        if isinstance(about, SubscriptionsQuery):
            return encoder.encode(self._subscriptions(about))
        return encoder.encode(self._explanation(about))

    def _activities(self, clients: Iterable[int]) -> ActivityReply:
        return {
            number: self._activity(session)
            for number in clients
            if (session := self._sessions.get(number)) is not None
        }

    def _activity(self, session: Session) -> Activity:
        ledger = session.outbox.statistics()
        choice = session.outbox.flood_control
        waits_for = self._waits_for(session)
        return Activity(
            messages_in=session.messages_in,
            bytes_in=session.bytes_in,
            accepted=ledger.accepted,
            delivered=ledger.delivered,
            delivered_bytes=session.outbox.delivered_bytes,
            discarded=ledger.lost,
            backlog=ledger.backlog,
            backlog_bytes=ledger.backlog_bytes,
            subscriptions=session.subscriptions,
            refused=session.refused,
            soft=choice.soft.value,
            hard=choice.hard.value,
            order=choice.order.value,
            stalled=session.backpressure is not None and session.backpressure.stalled,
            waits_for="" if waits_for is None else waits_for.value,
        )

    # -- subscriptions -------------------------------------------------------------------------
    def _subscriptions(self, about: SubscriptionsQuery) -> SubscriptionsReply:
        wanted = None if about.pattern is None else parse_pattern(about.pattern, self._dialect)
        nothing_matches = about.pattern is not None and wanted is None
        entries: list[Entry] = []
        size_bytes = 0
        looked_at = 0
        for number, session in self._sessions.items():
            if number < about.client or (about.uid is not None and session.uid != about.uid):
                continue
            start = about.offset if number == about.client else 0
            for offset, (pattern, count) in enumerate(session.patterns.items()):
                if offset < start:
                    continue
                size_bytes += len(pattern) + _ENTRY_BYTES
                if (
                    len(entries) >= about.entries_max
                    or looked_at >= _PATTERNS_LOOKED_AT_MAX
                    or size_bytes > ANSWER_BYTES_MAX
                ):
                    return SubscriptionsReply(entries, (number, offset))
                looked_at += 1
                if not nothing_matches and self._has_keys_in_common(pattern, wanted):
                    entries.append(Entry(number, pattern, count))
                else:
                    size_bytes -= len(pattern) + _ENTRY_BYTES
        return SubscriptionsReply(entries, None)

    def _has_keys_in_common(self, pattern: bytes, wanted: PatternPath | None) -> bool:
        if wanted is None:
            return True
        path = parse_pattern(widened(pattern), self._dialect)
        return path is not None and overlap(path, wanted)

    # -- who gets what -------------------------------------------------------------------------
    def _explanation(self, about: ExplanationQuery) -> ExplanationReply:
        owners = {session.outbox: session for session in self._sessions.values()}
        matching = [
            owners[outbox] for outbox in self._router.matching(about.key) if outbox in owners
        ]
        matching.sort(key=lambda session: session.id)
        recipients: list[MatchingClient] = []
        excluded: list[MatchingClient] = []
        counts = [0, 0, 0]
        matched = self._matched_patterns(about.key)
        for session in matching:
            why_not, text = self._why_not(session, about.key)
            stalled = session.backpressure is not None and session.backpressure.stalled
            counts[bool(why_not)] += 1
            counts[2] += stalled and not why_not
            named = excluded if why_not else recipients
            if len(named) < EXPLAINED_MAX:
                named.append(
                    MatchingClient(
                        client=session.id,
                        patterns=matched(session),
                        backlog=session.outbox.statistics().backlog,
                        stalled=stalled,
                        why_not=why_not,
                        text=text,
                    )
                )
        return ExplanationReply(recipients, counts[0], excluded, counts[1], counts[2])

    def _why_not(self, session: Session, key: bytes) -> tuple[WhyNot, str]:
        """Why a client that has a matching pattern would not receive; two empty texts if it
        would."""
        if session.outbox.is_closed or session.outbox.fault is not None:
            return "disconnecting", "the client is leaving"
        denied_by = self._rules.subscribe_key_denied_by(session.profile, key)
        if denied_by is not None:
            return "not-allowed", f"rules[{denied_by}]"
        if is_reserved(key, self._dialect):
            named = ids_of(key)
            if not session.secret_recipient.has_ids(named):
                return "not-yours", "the key names another group, user or process"
            if session.secret_recipient.recipient(named) is None:
                return "process-ended", "the process that connected has ended"
        return "", ""

    def _matched_patterns(self, key: bytes) -> Callable[[Session], list[bytes]]:
        """What finds those of a client's patterns that match, a bounded number in all."""
        segments = tuple(key.split(self._dialect.separator))
        path = PatternPath(segments, (False,) * len(segments), subtree=False)
        left = _PATTERNS_LOOKED_AT_MAX
        left_bytes = ANSWER_BYTES_MAX

        def those_that_match(session: Session) -> Iterator[bytes]:
            nonlocal left, left_bytes
            for pattern in session.patterns:
                left -= 1
                if left < 0:
                    return
                own = parse_pattern(widened(pattern), self._dialect)
                if own is not None and contains(own, path):
                    left_bytes -= len(pattern)
                    if left_bytes < 0:
                        return
                    yield pattern

        def some(session: Session) -> list[bytes]:
            return list(islice(those_that_match(session), _PATTERNS_SHOWN_MAX))

        return some
