"""The rows of `sbusctl top`: the activity of clients, users, workers and keys between two samples.

A rate is a counter's difference divided by the time between the samples. The counters of a client
that connected in between began at zero; a client that left is not shown. A client is left out if
its worker did not answer for one of the samples.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from sbus.client.message_joiner import MonitoredMessage
from sbus.protocol.admin_results import Activity, ClientReport, Traffic, WorkerReport, total
from sbus.protocol.text import from_text

Sort = Literal["in", "bytes", "out", "lost", "backlog"]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The messages and bytes of one row, per second."""

    messages_in_per_second: float
    bytes_in_per_second: float
    delivered_per_second: float


class FullLoad(Load, frozen=True, kw_only=True):
    """A load with its losses, and its backlog at the second look."""

    discarded_per_second: float
    backlog: int


class ClientLoad(FullLoad, frozen=True, kw_only=True):
    client: int
    uid: int
    pid: int
    program: str
    worker: int


class UserLoad(FullLoad, frozen=True, kw_only=True):
    """The sum of a user's `clients` that are there at the second look."""

    uid: int
    clients: int


class WorkerLoad(FullLoad, frozen=True, kw_only=True):
    """`cpu_percent` is that of one processor."""

    worker: int
    pid: int
    clients: int
    cpu_percent: float


class KeyLoad(Load, frozen=True, kw_only=True):
    """The messages whose keys have this prefix, which ends in a separator if the keys are longer;
    null for all prefixes beyond `PREFIXES_MAX`. Every recipient counts as a delivery."""

    prefix: str | None


class Top(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison, over the last `seconds`."""

    by: str
    sort: Sort = "in"
    seconds: float
    rows: list[Load]
    unanswered: list[int] = []
    """Workers whose clients, or messages, are missing."""
    missed: int = 0
    """Messages that came too fast to be counted."""


SORT_FIELDS: dict[Sort, str] = {
    "in": "messages_in_per_second",
    "bytes": "bytes_in_per_second",
    "out": "delivered_per_second",
    "lost": "discarded_per_second",
    "backlog": "backlog",
}


def sorted_by(top: Top, sort: Sort) -> Top:
    """The same comparison with the largest rows first; equal rows keep their order."""
    rows = sorted(top.rows, key=lambda row: -float(getattr(row, SORT_FIELDS[sort], 0)))
    return msgspec.structs.replace(top, sort=sort, rows=rows)


# -- differences of counters -----------------------------------------------------------------------
def _rates(
    before: Activity | Traffic | None, now: Activity | Traffic, seconds: float
) -> dict[str, Any]:
    """The fields of a load that are rates."""
    counted = ("messages_in", "bytes_in", "delivered", "discarded")
    return {f"{name}_per_second": _since(before, now, name) / seconds for name in counted}


def _since(before: Activity | Traffic | None, now: Activity | Traffic, name: str) -> int:
    """By how much a counter has grown; it begins at 0 again when its worker has died."""
    old, new = total(before, name) if before else 0, total(now, name)
    return new - old if new >= old else new


def client_loads(
    before: dict[int, ClientReport], now: Iterable[ClientReport], seconds: float
) -> Iterator[ClientLoad]:
    """The load of each client whose activity is known."""
    for client in now:
        old, activity = before.get(client.client), client.activity
        if activity is None or (old and old.activity is None):
            continue
        yield ClientLoad(
            client=client.client,
            uid=client.uid,
            pid=client.pid,
            program=client.program,
            worker=client.worker,
            backlog=activity.backlog,
            **_rates(old.activity if old else None, activity, seconds),
        )


def user_loads(clients: Iterable[ClientLoad]) -> list[UserLoad]:
    """The sums of each user's clients."""
    users: dict[int, list[ClientLoad]] = {}
    for client in clients:
        users.setdefault(client.uid, []).append(client)
    fields = FullLoad.__struct_fields__
    return [
        UserLoad(
            uid=uid,
            clients=len(loads),
            **{name: sum(getattr(load, name) for load in loads) for name in fields},
        )
        for uid, loads in users.items()
    ]


def worker_loads(
    before: dict[int, WorkerReport], now: Iterable[WorkerReport], seconds: float
) -> Iterator[WorkerLoad]:
    """The load of each worker. The CPU time of a replaced worker starts again with its new
    process; its other counters continue."""
    for worker in now:
        old = before.get(worker.worker, worker)
        cpu_before = old.cpu_seconds if old.pid == worker.pid else 0.0
        yield WorkerLoad(
            worker=worker.worker,
            pid=worker.pid,
            clients=worker.clients,
            cpu_percent=100 * max(0.0, worker.cpu_seconds - cpu_before) / seconds,
            backlog=worker.traffic.backlog,
            **_rates(old.traffic, worker.traffic, seconds),
        )


# -- keys ------------------------------------------------------------------------------------------
PREFIXES_MAX = 4_096
"""Any client can invent keys, so memory needs a bound; further prefixes are counted together."""
_PACKET_OVERHEAD_BYTES = len(b"MSG \0")


class PrefixCounts:
    """Messages, bytes and recipients by the first `depth` segments of the key."""

    def __init__(self, separator: str, depth: int) -> None:
        self._separator = separator
        self._depth = depth
        self._counts: dict[str | None, list[int]] = {}

    def add(self, message: MonitoredMessage) -> None:
        """Count a message. The payload of a secret one counts as empty: its size is unknown."""
        prefix: str | None = self._prefix(message.key)
        if prefix not in self._counts and len(self._counts) >= PREFIXES_MAX:
            prefix = None
        counts = self._counts.setdefault(prefix, [0, 0, 0])
        counts[0] += 1
        counts[1] += _PACKET_OVERHEAD_BYTES + len(from_text(message.key)) + (message.size or 0)
        counts[2] += message.recipients or 0

    def _prefix(self, key: str) -> str:
        segments = key.split(self._separator, self._depth)
        if len(segments) <= self._depth:
            return key
        return self._separator.join((*segments[: self._depth], ""))

    def take(self, seconds: float) -> list[KeyLoad]:
        """The counts as rates; counting starts again."""
        counts, self._counts = self._counts, {}
        return [
            KeyLoad(
                prefix=prefix,
                messages_in_per_second=messages / seconds,
                bytes_in_per_second=size_bytes / seconds,
                delivered_per_second=recipients / seconds,
            )
            for prefix, (messages, size_bytes, recipients) in counts.items()
        ]
