"""The verbs that look at clients: `clients`, `subs` and `explain`, and what a user asks of itself.

The client registry knows who is connected. Only the workers know activity, patterns and matches;
they are queried. A result names the workers that did not reply in time.
"""

from collections.abc import Iterable
from typing import Any

from sbus.broker.admin.request_codec import AdminFault, Handlers
from sbus.broker.admin.statistics import StatisticsCollector
from sbus.broker.admin.worker_queries import WorkerQueries
from sbus.broker.config.settings import BusSettings
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.ipc.queries import (
    CLIENTS_MAX,
    PATTERN_BYTES_MAX,
    ActivityQuery,
    ActivityReply,
    ExplanationQuery,
    ExplanationReply,
    MatchingClient,
    Query,
    SubscriptionsQuery,
    SubscriptionsReply,
)
from sbus.errors import ClientFault
from sbus.protocol import admin
from sbus.protocol import admin_results as results
from sbus.protocol.keys import DIALECTS, check_key, is_reserved
from sbus.protocol.text import from_text, to_text
from sbus.version import __version__

_OWN_ENTRIES_MAX = 100
"""Clients, and subscriptions, that a user is told of itself."""


class InspectionHandlers:
    """Answers for one bus."""

    def __init__(
        self,
        settings: BusSettings,
        registry: ClientRegistry,
        queries: WorkerQueries,
        collector: StatisticsCollector,
    ) -> None:
        self._settings = settings
        self._dialect = DIALECTS[settings.dialect]
        self._registry = registry
        self._queries = queries
        self._collector = collector
        self.handlers: Handlers = {
            admin.Clients: self._clients,
            admin.Subs: self._subs,
            admin.Explain: self._explain,
        }

    # -- clients -------------------------------------------------------------------------------
    async def _clients(self, request: admin.Clients) -> results.ClientsResult:
        page = self._registry.page(request.uid, request.after, request.limit)
        reports, unanswered = await self._report_clients(page)
        return results.ClientsResult(
            clients=reports,
            next=page[-1].number if len(page) == request.limit else None,
            unanswered=unanswered,
        )

    async def _report_clients(
        self, clients: list[Client]
    ) -> tuple[list[results.ClientReport], list[int]]:
        """A report on each of these clients, and the workers that did not reply."""
        activity: ActivityReply = {}
        unanswered: set[int] = set()
        await self._add_activity(clients, activity, unanswered)
        moved = [client for client in clients if self._is_elsewhere(client, activity, unanswered)]
        await self._add_activity(moved, activity, unanswered)
        reports = [
            results.ClientReport(
                gid=client.credentials.gid,
                connected_at=client.connected_at,
                activity=activity.get(client.number),
                **_identity(client),
            )
            for client in clients
            # A client that left in the meantime has no activity, though its worker replied.
            if client.worker in unanswered
            or client.number in activity
            or self._registry.get(client.number) is client
        ]
        return reports, sorted(unanswered)

    async def _add_activity(
        self, clients: list[Client], activity: ActivityReply, unanswered: set[int]
    ) -> None:
        """Ask the workers of these clients, except for those that did not reply."""
        for start in range(0, len(clients), CLIENTS_MAX):
            by_worker: dict[int, list[int]] = {}
            for client in clients[start : start + CLIENTS_MAX]:
                if client.worker not in unanswered:
                    by_worker.setdefault(client.worker, []).append(client.number)
            queries: dict[int, Query] = {
                worker: ActivityQuery(numbers) for worker, numbers in by_worker.items()
            }
            replies, silent = await self._queries.ask(queries, ActivityReply)
            unanswered.update(silent)
            for reply in replies.values():
                activity.update(reply)

    def _is_elsewhere(self, client: Client, activity: ActivityReply, unanswered: set[int]) -> bool:
        """Whether a client is connected, but was not at the worker that was asked: it moved."""
        return (
            client.number not in activity
            and client.worker not in unanswered
            and self._registry.get(client.number) is client
        )

    # -- subscriptions -------------------------------------------------------------------------
    async def _subs(self, request: admin.Subs) -> results.SubsResult:
        worker, number, offset = _parse_place(request.after)
        pattern = _bytes(request.pattern) if request.pattern else None
        if worker >= self._settings.workers:
            return results.SubsResult(subscriptions=[], next=None, unanswered=[])
        query = SubscriptionsQuery(number, offset, request.limit, pattern=pattern)
        replies, unanswered = await self._queries.ask({worker: query}, SubscriptionsReply)
        reply = replies.get(worker, SubscriptionsReply([], None))
        place = (worker, *reply.next) if reply.next else (worker + 1, 0, 0)
        return results.SubsResult(
            subscriptions=self._report_subscriptions(reply),
            next=None if place[0] >= self._settings.workers else ":".join(map(str, place)),
            unanswered=unanswered,
        )

    def _report_subscriptions(self, reply: SubscriptionsReply) -> list[results.SubscriptionReport]:
        reports = []
        identities: dict[int, dict[str, Any]] = {}
        for entry in reply.entries:
            client = self._registry.get(entry.client)
            if client is None:
                continue
            if client.number not in identities:
                identities[client.number] = _identity(client)
            reports.append(
                results.SubscriptionReport(
                    pattern=to_text(entry.pattern), count=entry.count, **identities[client.number]
                )
            )
        return reports

    # -- who would receive a message -----------------------------------------------------------
    async def _explain(self, request: admin.Explain) -> results.ExplainResult:
        key = _bytes(request.key)
        try:
            check_key(key, self._dialect, self._settings.limits)
        except ClientFault as fault:
            raise AdminFault("bad-request", f"nobody could publish that: {fault.text}") from fault
        replies, unanswered = await self._queries.ask_all(ExplanationQuery(key), ExplanationReply)
        found = replies.values()
        return results.ExplainResult(
            key=to_text(key),
            secret=is_reserved(key, self._dialect),
            recipients=self._recipients(match for reply in found for match in reply.recipients),
            recipients_count=sum(reply.recipients_count for reply in found),
            excluded=self._recipients(match for reply in found for match in reply.excluded),
            excluded_count=sum(reply.excluded_count for reply in found),
            workers=[worker for worker, reply in replies.items() if reply.recipients_count],
            stalled_count=sum(reply.stalled_count for reply in found),
            unanswered=unanswered,
        )

    def _recipients(self, matches: Iterable[MatchingClient]) -> list[results.Recipient]:
        room_bytes = PATTERN_BYTES_MAX
        recipients: list[results.Recipient] = []
        for match in matches:
            client = self._registry.get(match.client)
            if client is None or len(recipients) == admin.EXPLAINED_MAX:
                continue
            room_bytes -= sum(map(len, match.patterns))
            recipients.append(
                results.Recipient(
                    patterns=[to_text(p) for p in match.patterns] if room_bytes >= 0 else [],
                    backlog=match.backlog,
                    stalled=match.stalled,
                    why_not=match.why_not,
                    text=match.text,
                    **_identity(client),
                )
            )
        return recipients

    # -- users ---------------------------------------------------------------------------------
    async def me(self, uid: int) -> results.MeResult | None:
        """What a user is told of itself; None when the bus has no account of it any more."""
        clients, unanswered = await self._report_clients(
            self._registry.page(uid, 0, _OWN_ENTRIES_MAX)
        )
        query = SubscriptionsQuery(0, 0, _OWN_ENTRIES_MAX, uid=uid)
        queries: dict[int, Query] = dict.fromkeys(self._registry.workers_of(uid), query)
        replies, silent = await self._queries.ask(queries, SubscriptionsReply)
        user = self._collector.user(uid)
        if user is None:
            return None
        subscriptions = [
            report for reply in replies.values() for report in self._report_subscriptions(reply)
        ]
        return results.MeResult(
            user=user,
            clients=clients,
            subscriptions=subscriptions[:_OWN_ENTRIES_MAX],
            unanswered=sorted({*unanswered, *silent}),
            version=__version__,
        )


def _identity(client: Client) -> dict[str, Any]:
    """What every report about a client says of it."""
    return {
        "client": client.number,
        "uid": client.credentials.uid,
        "pid": client.credentials.pid,
        "program": to_text(client.program),
        "worker": client.worker,
    }


def _bytes(text: str) -> bytes:
    try:
        return from_text(text)
    except ValueError as error:
        raise AdminFault("bad-request", str(error)) from error


def _parse_place(after: str | None) -> tuple[int, int, int]:
    """A worker, a client of it, and how many of its patterns were listed."""
    if after is None:
        return 0, 0, 0
    numbers = after.split(":")
    if len(numbers) != 3 or not all(n.isascii() and n.isdigit() and len(n) < 19 for n in numbers):
        raise AdminFault("bad-request", "'after' is not the 'next' of a page")
    worker, client, offset = map(int, numbers)
    return worker, client, offset
