"""The sources of the rows of `sbusctl top`: a request for every sample, and for keys a stream.

Times are of `time.monotonic`, in seconds.
"""

import time
from abc import ABC, abstractmethod
from typing import Literal

from sbus.cli.top.loads import Load, PrefixCounts, Top, client_loads, user_loads, worker_loads
from sbus.cli.views.paging import ask_all_pages
from sbus.client.admin import AdminConnection
from sbus.client.message_joiner import MissedItems
from sbus.client.streams import MessageStream
from sbus.protocol.admin import PAGE_MAX, Clients, Workers
from sbus.protocol.admin_results import ClientReport, ClientsResult, WorkerReport, WorkersResult


class Source(ABC):
    """Compares one look with the one before."""

    by: str
    _looked_at: float | None = None

    def look(self) -> Top | None:
        """What happened since the look before; None the first time."""
        now, before = time.monotonic(), self._looked_at
        self._looked_at = now
        top = self._compare(1.0 if before is None else max(now - before, 1e-9))
        return None if before is None else top

    @abstractmethod
    def _compare(self, seconds: float) -> Top:
        """Look, and compare with the look that many seconds ago; the first result is not used."""

    def fileno(self) -> int | None:
        """A descriptor that is readable when `receive` is due; None if it never is."""
        return None

    def receive(self) -> None:  # noqa: B027 (only a source with a descriptor needs it)
        """Read what the bus sends between looks."""


class ClientSource(Source):
    """Clients, one by one or summed by user."""

    def __init__(self, admin: AdminConnection, by: Literal["client", "user"]) -> None:
        self.by = by
        self._admin = admin
        self._before: dict[int, ClientReport] = {}

    def _compare(self, seconds: float) -> Top:
        now = ask_all_pages(self._admin, Clients(limit=PAGE_MAX), ClientsResult)
        before, self._before = self._before, {client.client: client for client in now.clients}
        clients = client_loads(before, now.clients, seconds)
        rows: list[Load] = [*(clients if self.by == "client" else user_loads(clients))]
        return Top(by=self.by, seconds=seconds, rows=rows, unanswered=now.unanswered)


class WorkerSource(Source):
    """Workers. They count for clients that left in between as well."""

    by = "worker"

    def __init__(self, admin: AdminConnection) -> None:
        self._admin = admin
        self._before: dict[int, WorkerReport] = {}

    def _compare(self, seconds: float) -> Top:
        now = self._admin.ask(Workers(), WorkersResult).workers
        before, self._before = self._before, {worker.worker: worker for worker in now}
        return Top(by=self.by, seconds=seconds, rows=[*worker_loads(before, now, seconds)])


class KeySource(Source):
    """Prefixes of keys. The connection serves the stream from now on.

    The counts are exact as long as this program is as fast as the bus; it counts what it missed.
    Messages before the first look do not count.
    """

    by = "key"

    def __init__(self, admin: AdminConnection, separator: str, depth: int) -> None:
        self._admin = admin
        self._stream = MessageStream(admin)
        self._counts = PrefixCounts(separator, depth)
        self._missed = 0

    def fileno(self) -> int:
        return self._admin.fileno()

    def receive(self) -> None:
        for item in self._stream.receive_many(0.0):
            if isinstance(item, MissedItems):
                self._missed += item.count
            else:
                self._counts.add(item)

    def _compare(self, seconds: float) -> Top:
        self.receive()
        rows = self._counts.take(seconds)
        missed, self._missed = self._missed, 0
        return Top(
            by=self.by,
            seconds=seconds,
            rows=[*rows],
            unanswered=self._stream.unanswered,
            missed=missed,
        )
