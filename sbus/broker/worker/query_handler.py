"""A worker's replies to the front's queries: its clients, their patterns, and who receives what.

A reply takes a bounded time, because all clients wait meanwhile, and a bounded number of bytes.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from sbus.broker.ipc.queries import (
    PATTERN_BYTES_MAX,
    ActivityQuery,
    ActivityReply,
    ExplanationQuery,
    ExplanationReply,
    MatchingClient,
    Query,
    SubscriptionEntry,
    SubscriptionsQuery,
    SubscriptionsReply,
)
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.router import Router
from sbus.broker.worker.session import Session
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.wait_queue import WaitQueue
from sbus.protocol.admin import EXPLAINED_MAX
from sbus.protocol.admin_results import Activity, WhyNot
from sbus.protocol.keys import PatternPath, is_reserved, parse_pattern
from sbus.protocol.secret_keys import ids_of, widened
from sbus.routing.pattern_sets import contains, overlap
from sbus.unix.send_buffer import unread_bytes

_PATTERNS_LOOKED_AT_MAX = 5_000
"""A look takes some 2 us."""
_PATTERNS_SHOWN_MAX = 10
_ENTRY_BYTES = 24

_encoder = msgspec.msgpack.Encoder()


class QueryHandler:
    """Of one worker."""

    def __init__(
        self, context: WorkerContext, router: Router, sessions: Sessions, wait_queue: WaitQueue
    ) -> None:
        self._dialect = context.dialect
        self._rules = context.rules
        self._router = router
        self._sessions = sessions
        self._wait_queue = wait_queue

    def answer(self, query: Query) -> bytes:
        """The encoded reply."""
        if isinstance(query, ActivityQuery):
            return _encoder.encode(self._activities(query.clients))
        if isinstance(query, SubscriptionsQuery):
            return _encoder.encode(self._subscriptions(query))
        return _encoder.encode(self._explanation(query))

    def _activities(self, clients: Iterable[int]) -> ActivityReply:
        return {
            client: self._activity(session)
            for client in clients
            if (session := self._sessions.find(client)) is not None
        }

    def _activity(self, session: Session) -> Activity:
        outbox = session.outbox
        ledger = outbox.statistics()
        choice = outbox.flood_control
        waits_for = self._wait_queue.reason(session)
        return Activity(
            messages_in=session.messages_in,
            bytes_in=session.bytes_in,
            accepted=ledger.accepted,
            delivered=ledger.delivered,
            delivered_bytes=outbox.delivered_bytes,
            discarded=ledger.dropped,
            replaced=ledger.replaced,
            backlog=ledger.backlog,
            backlog_bytes=ledger.backlog_bytes,
            socket_bytes=unread_bytes(session.sock),
            subscriptions=session.subscriptions,
            refused=session.refused,
            soft=choice.soft.value,
            hard=choice.hard.value,
            order=choice.order.value,
            age_ms_max=choice.age_ms_max,
            stalled=session.is_stalled,
            waits_for="" if waits_for is None else waits_for.value,
        )

    # -- subscriptions -------------------------------------------------------------------------
    def _subscriptions(self, query: SubscriptionsQuery) -> SubscriptionsReply:
        wanted = None if query.pattern is None else parse_pattern(query.pattern, self._dialect)
        nothing_matches = query.pattern is not None and wanted is None
        entries: list[SubscriptionEntry] = []
        size_bytes = 0
        looked_at = 0
        for session in self._sessions:
            client = session.client
            if client < query.client or query.uid not in (None, session.account.uid):
                continue
            start = query.offset if client == query.client else 0
            for offset, (pattern, count) in enumerate(session.patterns.items()):
                if offset < start:
                    continue
                size_bytes += len(pattern) + _ENTRY_BYTES
                if (
                    len(entries) >= query.entries_max
                    or looked_at >= _PATTERNS_LOOKED_AT_MAX
                    or size_bytes > PATTERN_BYTES_MAX
                ):
                    return SubscriptionsReply(entries, (client, offset))
                looked_at += 1
                if not nothing_matches and self._has_keys_in_common(pattern, wanted):
                    entries.append(SubscriptionEntry(client, pattern, count))
                else:
                    size_bytes -= len(pattern) + _ENTRY_BYTES
        return SubscriptionsReply(entries, None)

    def _has_keys_in_common(self, pattern: bytes, wanted: PatternPath | None) -> bool:
        if wanted is None:
            return True
        path = parse_pattern(widened(pattern), self._dialect)
        return path is not None and overlap(path, wanted)

    # -- who gets what -------------------------------------------------------------------------
    def _explanation(self, query: ExplanationQuery) -> ExplanationReply:
        owners = {session.outbox: session for session in self._sessions}
        matching = [
            owners[outbox] for outbox in self._router.matching(query.key) if outbox in owners
        ]
        matching.sort(key=lambda session: session.client)
        recipients: list[MatchingClient] = []
        excluded: list[MatchingClient] = []
        counts = [0, 0, 0]
        matched = self._matched_patterns(query.key)
        for session in matching:
            why_not, text = self._why_not(session, query.key)
            counts[bool(why_not)] += 1
            counts[2] += session.is_stalled and not why_not
            named = excluded if why_not else recipients
            if len(named) < EXPLAINED_MAX:
                named.append(
                    MatchingClient(
                        client=session.client,
                        patterns=matched(session),
                        backlog=session.outbox.statistics().backlog,
                        stalled=session.is_stalled,
                        why_not=why_not,
                        text=text,
                    )
                )
        return ExplanationReply(recipients, counts[0], excluded, counts[1], counts[2])

    def _why_not(self, session: Session, key: bytes) -> tuple[WhyNot, str]:
        """Why a client that has a matching pattern would not receive; two empty texts if it
        would."""
        if session.outbox.is_closed:
            return "disconnecting", "the client is leaving"
        denied_by = self._rules.denied_by(session.profile.subscribe, key)
        if denied_by is not None:
            return "not-allowed", f"rules[{denied_by}]"
        if is_reserved(key, self._dialect):
            named = ids_of(key)
            if not session.secret_recipient.owns(named):
                return "not-yours", "the key names another group, user or process"
            if not session.secret_recipient.is_meant(named):
                return "process-ended", "the process that connected has ended"
        return "", ""

    def _matched_patterns(self, key: bytes) -> Callable[[Session], list[bytes]]:
        """Finds those of a client's patterns that match, a bounded number for all clients."""
        segments = tuple(key.split(self._dialect.separator))
        path = PatternPath(segments, (False,) * len(segments), subtree=False)
        left = _PATTERNS_LOOKED_AT_MAX
        left_bytes = PATTERN_BYTES_MAX

        def matches(session: Session) -> Iterator[bytes]:
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

        return lambda session: list(islice(matches(session), _PATTERNS_SHOWN_MAX))
