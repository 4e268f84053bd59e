"""What the bus answers to each request of the admin protocol.

Figures come from the statistics collector, lists from the client registry and, for what only they
know, from the workers. A result names the workers that did not answer in time.
"""

import os
import platform
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec

from sbus.broker.admin.statistics import StatisticsCollector
from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.broker.ipc.queries import (
    ANSWER_BYTES_MAX,
    CLIENTS_MAX,
    ActivityQuery,
    ActivityReply,
    ExplanationQuery,
    ExplanationReply,
    MatchingClient,
    PendingQueries,
    Query,
    SubscriptionsQuery,
    SubscriptionsReply,
)
from sbus.broker.ipc.worker_protocol import RunQuery
from sbus.errors import ClientFault, ConfigurationError, SbusError
from sbus.protocol import admin
from sbus.protocol.admin_results import (
    ClientReport,
    ClientsResult,
    DrainResult,
    ExplainResult,
    KickResult,
    LimitResult,
    MeResult,
    Recipient,
    ReloadResult,
    StatsResult,
    SubscriptionReport,
    SubsResult,
    UsersResult,
    VersionResult,
    WorkersResult,
)
from sbus.protocol.events import ConfigurationRejected, ConfigurationReloaded, LimitsChanged
from sbus.protocol.keys import DIALECTS, check_key, is_reserved
from sbus.protocol.text import from_text, to_text
from sbus.version import __version__

_MINE_MAX = 100
"""Clients, and subscriptions, that a user is told of itself."""

T = TypeVar("T")


class AdminFault(SbusError):
    """There is no result; `code` is one of those that `admin.Fault` names."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class AdminActions(msgspec.Struct, frozen=True, kw_only=True):
    """What the front does when an administrator says so."""

    kick: Callable[[Client, str], None]
    drain: Callable[[float | None], None]
    reload: Callable[[], Awaitable[ReloadResult]]
    """Raises ConfigurationError."""
    is_draining: Callable[[], bool]


class AdminHandlers:
    """Of one bus, at `address`."""

    def __init__(
        self,
        settings: BusSettings,
        address: str,
        registry: ClientRegistry,
        supervisor: Supervisor,
        statistics_collector: StatisticsCollector,
        questions: PendingQueries,
        user_limits: EffectiveUserLimits,
        connections_refused: Callable[[], dict[str, int]],
        actions: AdminActions,
        events: EventEmitter,
    ) -> None:
        self._settings = settings
        self._dialect = DIALECTS[settings.dialect]
        self._address = to_text(address.encode(errors="surrogateescape"))
        self._pid = os.getpid()
        self._started_at = time.time()
        self._started_monotonic = time.monotonic()
        self._registry = registry
        self._supervisor = supervisor
        self._statistics_collector = statistics_collector
        self._questions = questions
        self._user_limits = user_limits
        self._connections_refused = connections_refused
        self._actions = actions
        self._events = events
        self._verbs: dict[type[admin.Request], Callable[..., Awaitable[msgspec.Struct]]] = {
            admin.Stats: self._stats,
            admin.Workers: self._workers,
            admin.Clients: self._clients,
            admin.Subs: self._subs,
            admin.Users: self._users,
            admin.Explain: self._explain,
            admin.Kick: self._kick,
            admin.Limit: self._limit,
            admin.Reload: self._reload,
            admin.Drain: self._drain,
            admin.Version: self._version,
        }

    async def answer(self, request: admin.Request) -> msgspec.Struct:
        """The result of a request that begins no stream. Raises AdminFault."""
        verb = self._verbs.get(type(request))
        if verb is None:
            raise AdminFault("failed", "this bus cannot do that")
        return await verb(request)

    # -- figures -------------------------------------------------------------------------------
    async def _stats(self, _request: admin.Stats) -> StatsResult:
        log, table = await self._statistics_collector.fills()
        traffic, rates = self._statistics_collector.totals()
        return StatsResult(
            address=self._address,
            started_at=self._started_at,
            uptime_seconds=time.monotonic() - self._started_monotonic,
            draining=self._actions.is_draining(),
            clients=len(self._registry),
            users=self._statistics_collector.connected_users(),
            connections_accepted=self._registry.admitted,
            connections_refused=self._connections_refused(),
            stalled_clients=self._statistics_collector.stalled_clients(),
            log=log,
            table=table,
            traffic=traffic,
            rates=rates,
            workers=self._statistics_collector.workers(),
        )

    async def _workers(self, _request: admin.Workers) -> WorkersResult:
        return WorkersResult(self._statistics_collector.workers())

    async def _users(self, request: admin.Users) -> UsersResult:
        users = self._statistics_collector.users(request.after, request.limit)
        return UsersResult(users=users, next=_next(users, request.limit, lambda user: user.uid))

    async def _version(self, _request: admin.Version) -> VersionResult:
        return VersionResult(
            version=__version__,
            protocol=admin.VERSION,
            python=platform.python_version(),
            address=self._address,
            dialect=self._settings.dialect,
            workers=self._settings.workers,
            pid=self._pid,
            started_at=self._started_at,
        )

    # -- lists ---------------------------------------------------------------------------------
    async def _clients(self, request: admin.Clients) -> ClientsResult:
        page = self._registry.page(request.uid, request.after, request.limit)
        reports, unanswered = await self._describe(page)
        return ClientsResult(
            clients=reports,
            next=_next(page, request.limit, lambda client: client.number),
            unanswered=unanswered,
        )

    async def _describe(self, clients: list[Client]) -> tuple[list[ClientReport], list[int]]:
        """What there is to say about these clients, and which workers did not say their part."""
        found: ActivityReply = {}
        unanswered: set[int] = set()
        for start in range(0, len(clients), CLIENTS_MAX):
            by_worker: dict[int, list[int]] = {}
            for client in clients[start : start + CLIENTS_MAX]:
                if client.worker not in unanswered:
                    by_worker.setdefault(client.worker, []).append(client.number)
            about: dict[int, Query] = {
                worker: ActivityQuery(numbers) for worker, numbers in by_worker.items()
            }
            answers, silent = await self._ask(about, ActivityReply)
            unanswered.update(silent)
            for answer in answers.values():
                found.update(answer)
        reports = [
            ClientReport(
                client=client.number,
                uid=client.credentials.uid,
                gid=client.credentials.gid,
                pid=client.credentials.pid,
                program=to_text(client.program),
                worker=client.worker,
                connected_at=client.connected_at,
                activity=found.get(client.number),
            )
            for client in clients
            # Who left in the meantime has no activity, though its worker answered.
            if client.worker in unanswered or client.number in found
        ]
        return reports, sorted(unanswered)

    async def _subs(self, request: admin.Subs) -> SubsResult:
        worker, number, offset = _parse_place(request.after)
        pattern = _bytes(request.pattern) if request.pattern else None
        if worker >= self._settings.workers:
            return SubsResult(subscriptions=[], next=None, unanswered=[])
        about = SubscriptionsQuery(number, offset, request.limit, pattern=pattern)
        found, unanswered = await self._ask({worker: about}, SubscriptionsReply)
        here = found.get(worker, SubscriptionsReply([], None))
        place = (worker, *here.next) if here.next else (worker + 1, 0, 0)
        return SubsResult(
            subscriptions=self._name_owners(here),
            next=None if place[0] >= self._settings.workers else ":".join(map(str, place)),
            unanswered=unanswered,
        )

    def _name_owners(self, here: SubscriptionsReply) -> list[SubscriptionReport]:
        reports = []
        programs: dict[int, str] = {}
        for entry in here.entries:
            client = self._registry.get(entry.client)
            if client is None:
                continue
            if client.number not in programs:
                programs[client.number] = to_text(client.program)
            reports.append(
                SubscriptionReport(
                    pattern=to_text(entry.pattern),
                    count=entry.count,
                    client=client.number,
                    uid=client.credentials.uid,
                    pid=client.credentials.pid,
                    program=programs[client.number],
                    worker=client.worker,
                )
            )
        return reports

    async def _explain(self, request: admin.Explain) -> ExplainResult:
        key = _bytes(request.key)
        try:
            check_key(key, self._dialect, self._settings.limits)
        except ClientFault as fault:
            raise AdminFault("bad-request", f"nobody could publish that: {fault.text}") from fault
        everybody: dict[int, Query] = dict.fromkeys(
            range(self._settings.workers), ExplanationQuery(key)
        )
        found, unanswered = await self._ask(everybody, ExplanationReply)
        answers = [found[worker] for worker in sorted(found)]
        return ExplainResult(
            key=to_text(key),
            secret=is_reserved(key, self._dialect),
            recipients=self._recipients(concerned for a in answers for concerned in a.recipients),
            recipients_count=sum(a.recipients_count for a in answers),
            excluded=self._recipients(concerned for a in answers for concerned in a.excluded),
            excluded_count=sum(a.excluded_count for a in answers),
            workers=[worker for worker in sorted(found) if found[worker].recipients_count],
            stalled_count=sum(a.stalled_count for a in answers),
            unanswered=unanswered,
        )

    def _recipients(self, concerned: Iterable[MatchingClient]) -> list[Recipient]:
        room_bytes = ANSWER_BYTES_MAX
        named: list[Recipient] = []
        for one in concerned:
            client = self._registry.get(one.client)
            if client is None or len(named) == admin.EXPLAINED_MAX:
                continue
            room_bytes -= sum(map(len, one.patterns))
            named.append(self._recipient(client, one, shows_patterns=room_bytes >= 0))
        return named

    def _recipient(self, client: Client, one: MatchingClient, *, shows_patterns: bool) -> Recipient:
        return Recipient(
            client=client.number,
            uid=client.credentials.uid,
            pid=client.credentials.pid,
            program=to_text(client.program),
            worker=client.worker,
            patterns=[to_text(pattern) for pattern in one.patterns] if shows_patterns else [],
            backlog=one.backlog,
            stalled=one.stalled,
            why_not=one.why_not,
            text=one.text,
        )

    async def _ask(self, about: dict[int, Query], kind: type[T]) -> tuple[dict[int, T], list[int]]:
        """Ask workers, each its own question."""
        number = self._questions.number()
        for worker, question in about.items():
            self._supervisor.tell(worker, RunQuery(number, question))
        return await self._questions.answers(number, about, kind)

    # -- actions ---------------------------------------------------------------------------------
    async def _kick(self, request: admin.Kick) -> KickResult:
        client = self._registry.get(request.client)
        if client is None:
            raise AdminFault("not-found", f"there is no client {request.client}")
        own = client.credentials
        result = KickResult(client.number, own.uid, own.pid, to_text(client.program))
        self._actions.kick(client, request.text or "disconnected by an administrator")
        return result

    async def _limit(self, request: admin.Limit) -> LimitResult:
        before = self._user_limits.of(request.uid)
        try:
            after = self._user_limits.change(request.uid, request.limits)
        except ConfigurationError as error:
            raise AdminFault("bad-request", str(error)) from error
        if request.limits:
            changes = [f"{name}={value}" for name, value in request.limits.items()]
            self._events.emit(LimitsChanged(uid=request.uid, changes=changes))
        return LimitResult(request.uid, before, after)

    async def _reload(self, _request: admin.Reload) -> ReloadResult:
        try:
            result = await self._actions.reload()
        except ConfigurationError as error:
            self._events.emit(ConfigurationRejected(why=str(error)))
            raise AdminFault("failed", str(error)) from error
        self._events.emit(
            ConfigurationReloaded(applied=result.applied, needs_restart=result.needs_restart)
        )
        return result

    async def _drain(self, request: admin.Drain) -> DrainResult:
        left = len(self._registry)
        self._actions.drain(request.timeout_seconds)
        return DrainResult(left)

    # -- users ---------------------------------------------------------------------------------
    async def me(self, uid: int) -> MeResult | None:
        """What a user is told of itself; None when the bus knows it no more."""
        clients, unanswered = await self._describe(self._registry.page(uid, 0, _MINE_MAX))
        everybody: dict[int, Query] = dict.fromkeys(
            range(self._settings.workers), SubscriptionsQuery(0, 0, _MINE_MAX, uid=uid)
        )
        found, silent = await self._ask(everybody, SubscriptionsReply)
        subscriptions = [
            report for worker in sorted(found) for report in self._name_owners(found[worker])
        ]
        user = self._statistics_collector.user(uid)
        if user is None:
            return None
        return MeResult(
            user=user,
            clients=clients,
            subscriptions=subscriptions[:_MINE_MAX],
            unanswered=sorted({*unanswered, *silent}),
        )


def _next(page: list[T], size: int, number: Callable[[T], int]) -> int | None:
    """Where to go on behind a page that was full."""
    return number(page[-1]) if len(page) == size else None


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
