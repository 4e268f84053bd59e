"""`sbusctl top`: who keeps the bus busy, out of two looks at it and their difference.

A counter's difference by the time between is a rate. Who came in between had counted from nothing;
who left is not seen any more; a client whose worker did not answer one of the two looks is left
out. Whatever is looked at has a `Source`: it asks the bus, and makes rows. Times are seconds of
`time.monotonic`.

This module does not know how rows are shown.
"""

import time
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from sbus.cli.sbusctl.answers import all_clients
from sbus.client.admin import AdminConnection
from sbus.protocol.admin import Workers
from sbus.protocol.admin_results import Activity, ClientReport, Traffic, WorkerReport, WorkersResult

Sort = Literal["in", "bytes", "out", "lost", "backlog"]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What one of those that are compared does, messages and bytes in a second."""

    messages_in_per_second: float
    bytes_in_per_second: float
    delivered_per_second: float


class FullLoad(Load, frozen=True, kw_only=True):
    """What becomes of messages for it, besides; `backlog` now."""

    discarded_per_second: float
    backlog: int


class ClientLoad(FullLoad, frozen=True, kw_only=True):
    client: int
    uid: int
    pid: int
    program: str
    worker: int


class UserLoad(FullLoad, frozen=True, kw_only=True):
    """Of all clients of a user together; `clients` are those of them that are there now."""

    uid: int
    clients: int


class WorkerLoad(FullLoad, frozen=True, kw_only=True):
    """`cpu_percent` is that of one processor."""

    worker: int
    pid: int
    clients: int
    cpu_percent: float


class KeyLoad(Load, frozen=True, kw_only=True):
    """Of messages under keys with this prefix, which ends in a separator if they go on; null: of
    all prefixes together that were too many to tell apart. Deliveries are recipients, whatever
    became of the messages."""

    prefix: str | None


class Top(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison, over the last `seconds`; `rows` as they were asked for, the first most."""

    by: str
    sort: Sort
    seconds: float
    rows: list[Load]
    unanswered: list[int] = []
    """Workers whose clients, or messages, are missing."""
    missed: int = 0
    """Messages that were not counted, because they came too fast."""


class Look(NamedTuple):
    """What a source saw since the last look."""

    seconds: float
    rows: list[Load]
    unanswered: list[int]
    missed: int = 0


COLUMNS: dict[Sort, str] = {
    "in": "messages_in_per_second",
    "bytes": "bytes_in_per_second",
    "out": "delivered_per_second",
    "lost": "discarded_per_second",
    "backlog": "backlog",
}
"""What is compared, by what it is called."""


def ordered(rows: Iterable[Load], sort: Sort) -> list[Load]:
    """The rows, the largest first; of equal ones, the order stays."""
    return sorted(rows, key=lambda row: -float(getattr(row, COLUMNS[sort], 0)))


class _Counters(NamedTuple):
    """What only grows."""

    messages_in: int
    bytes_in: int
    delivered: int
    discarded: int


_NOTHING = _Counters(0, 0, 0, 0)


def _rates(before: _Counters, now: _Counters, seconds: float) -> dict[str, Any]:
    """The differences by the time, by their names in `Load`."""
    return {
        f"{name}_per_second": (new - old) / seconds
        for name, old, new in zip(_Counters._fields, before, now, strict=True)
    }


class Source(Protocol):
    """What rows are made of."""

    by: str

    def look(self) -> Look | None:
        """None the first time, when there is nothing to compare with."""
        ...

    def fileno(self) -> int | None:
        """What to `receive` from whenever it is readable, if there is anything."""
        ...

    def receive(self) -> None: ...


class Clock:
    """The time between two looks."""

    def __init__(self) -> None:
        self._last: float | None = None

    def lap(self) -> float | None:
        now = time.monotonic()
        seconds = None if self._last is None else max(now - self._last, 1e-9)
        self._last = now
        return seconds


class ClientSource:
    """Clients one by one, or added up by user."""

    def __init__(self, admin: AdminConnection, by: Literal["client", "user"]) -> None:
        self.by: str = by
        self._admin = admin
        self._clock = Clock()
        self._before: dict[int, ClientReport] = {}

    def fileno(self) -> None:
        return None

    def receive(self) -> None:
        """Nothing comes unasked."""

    def look(self) -> Look | None:
        seconds = self._clock.lap()
        result = all_clients(self._admin)
        before, self._before = self._before, {one.client: one for one in result.clients}
        if seconds is None:
            return None
        rows = client_loads(before, result.clients, seconds)
        loads: list[Load] = [*(rows if self.by == "client" else user_loads(rows))]
        return Look(seconds, loads, result.unanswered)


def client_loads(
    before: dict[int, ClientReport], now: Iterable[ClientReport], seconds: float
) -> list[ClientLoad]:
    """What each client did since `before`, as far as that is known."""
    rows = []
    for client in now:
        old = before.get(client.client)
        does = client.activity
        if does is None or (old and old.activity is None):
            continue
        rows.append(
            ClientLoad(
                client=client.client,
                uid=client.uid,
                pid=client.pid,
                program=client.program,
                worker=client.worker,
                backlog=does.backlog,
                **_rates(_counters(old.activity) if old else _NOTHING, _counters(does), seconds),
            )
        )
    return rows


def _counters(does: Activity | None) -> _Counters:
    assert does is not None
    return _Counters(does.messages_in, does.bytes_in, does.delivered, does.discarded)


def user_loads(clients: Iterable[ClientLoad]) -> list[UserLoad]:
    """The clients of each user, added up."""
    users: dict[int, list[ClientLoad]] = {}
    for client in clients:
        users.setdefault(client.uid, []).append(client)
    return [
        UserLoad(
            uid=uid,
            clients=len(those),
            **{
                name: sum(getattr(one, name) for one in those)
                for name in FullLoad.__struct_fields__
            },
        )
        for uid, those in users.items()
    ]


class WorkerSource:
    """Workers; clients that left in between are counted here."""

    by = "worker"

    def __init__(self, admin: AdminConnection) -> None:
        self._admin = admin
        self._clock = Clock()
        self._before: dict[int, WorkerReport] = {}

    def fileno(self) -> None:
        return None

    def receive(self) -> None:
        """Nothing comes unasked."""

    def look(self) -> Look | None:
        seconds = self._clock.lap()
        workers = self._admin.ask(Workers(), WorkersResult).workers
        before, self._before = self._before, {one.worker: one for one in workers}
        if seconds is None:
            return None
        return Look(seconds, [*worker_loads(before, workers, seconds)], [])


def worker_loads(
    before: dict[int, WorkerReport], now: Iterable[WorkerReport], seconds: float
) -> list[WorkerLoad]:
    """What each worker did since `before`; one that has been replaced, its processor time in its
    new process."""
    rows = []
    for worker in now:
        old = before[worker.worker]
        cpu_before = old.cpu_seconds if old.pid == worker.pid else 0.0
        rows.append(
            WorkerLoad(
                worker=worker.worker,
                pid=worker.pid,
                clients=worker.clients,
                cpu_percent=100 * max(0.0, worker.cpu_seconds - cpu_before) / seconds,
                backlog=worker.traffic.backlog,
                **_rates(_sums(old.traffic), _sums(worker.traffic), seconds),
            )
        )
    return rows


def _sums(traffic: Traffic) -> _Counters:
    return _Counters(
        traffic.messages_in,
        traffic.bytes_in,
        traffic.delivered,
        sum(traffic.discarded.values()),
    )
