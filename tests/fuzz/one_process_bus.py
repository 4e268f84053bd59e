"""Whole workers on real sockets and one real shared memory, as tasks of one process.

A pretended front hands clients over, learns which have left and compacts the table when told to.
`settle` is a barrier that real processes do not have: afterwards every task waits for input.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio
import trio.testing

from sbus.broker.config.access_policy import encode_rule_set
from sbus.broker.config.settings import BusSettings, SettingsUpdate, write_owning_memfd
from sbus.broker.ipc.worker_link import WorkerLink
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    ApplySettings,
    ClientLeft,
    SettingsApplied,
    Stop,
)
from sbus.broker.worker_process import Worker, run_worker
from sbus.limits import Limits
from sbus.protocol.codes import PACKET_CODES
from sbus.shared.accounts import (
    BACKLOG_BYTES,
    SUBSCRIPTION_BYTES,
    SUBSCRIPTIONS,
    Account,
    AccountBook,
)
from sbus.shared.compaction import Compaction
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.subscription_table import all_have_read
from sbus.shared.worker_statistics import LATENCY, REFUSED
from sbus.unix.credentials import Credentials
from tests.support.events import logging_to
from tests.unit.shared.memories import close_memory

WORKERS = 2
CREDENTIALS = Credentials(gid=100, uid=1000, pid=4711)


class Peer:
    """A client's end of a connection to worker `worker`."""

    def __init__(self, number: int, worker: int, sock: socket.socket, packet_bytes: int) -> None:
        self.number = number
        self.worker = worker
        self.ended = False
        self._sock = sock
        self._packet_bytes = packet_bytes
        sock.setblocking(False)

    def send(self, packet: bytes) -> None:
        assert self._sock.send(packet) == len(packet)

    def read(self, packets_max: int = 1_000_000) -> list[bytes]:
        """What is here now."""
        packets: list[bytes] = []
        with suppress(BlockingIOError):
            while not self.ended and len(packets) < packets_max:
                packet = self._sock.recv(self._packet_bytes + 1)
                if packet:
                    packets.append(packet)
                else:
                    self.ended = True
        return packets

    def close(self) -> None:
        self._sock.close()


class OneProcessBus:
    """`workers`, and what the front would do for them."""

    def __init__(self, dialect: str, limits: Limits, nursery: trio.Nursery) -> None:
        self._limits = limits
        self._nursery = nursery
        self.memory = SharedMemory(WORKERS, limits)
        self.memory.lock.open()
        self._log = OrderedLog(self.memory)
        self._links: list[WorkerLink] = []
        self.workers: list[Worker] = []
        self.gone: dict[int, str] = {}
        """Why clients have gone, by number, since this was last emptied."""
        self.reconfigured: list[int] = []
        """Who went by other settings when told to, since this was last emptied."""
        self._numbers = 0
        self.book = AccountBook(self.memory.accounts, WORKERS, limits)
        self.account = self.account_of(CREDENTIALS.uid)
        """The account of the user that clients belong to by default."""
        self._settings = BusSettings(workers=WORKERS, dialect=dialect, limits=limits)

    async def start(self) -> None:
        """Start the workers."""
        for number in range(WORKERS):
            front, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._links.append(WorkerLink(front, self._nursery))
            self.workers.append(await self._nursery.start(self._run, number, link))

    async def _run(
        self, number: int, link: socket.socket, task_status: trio.TaskStatus[Worker]
    ) -> None:
        with link:
            await run_worker(
                self.memory,
                self._settings,
                logging_to([]),
                number,
                link,
                task_status=task_status,
            )

    def account_of(self, uid: int) -> Account:
        account = self.book.of(uid, self._limits.user, time.monotonic_ns())
        assert account is not None
        return account

    def connect(
        self,
        worker: int,
        own: Credentials = CREDENTIALS,
        buffer_bytes: int | None = None,
        rules: int = 0,
    ) -> Peer:
        """A new client; it is served from the next `settle` on. `buffer_bytes` is the SO_SNDBUF of
        the bus's end, `rules` are the access rules that concern it."""
        self._numbers += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            if buffer_bytes is not None:
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            link = self._links[worker]
            place = self.account_of(own.uid).place
            link.send(AdoptClient(self._numbers, own, place, encode_rule_set(rules)), ours.fileno())
            assert not link.queued
        return Peer(self._numbers, worker, theirs, self._limits.packet_bytes_max)

    def reconfigure(self, worker: int, what: SettingsUpdate) -> None:
        """Have a worker go by other settings; `reconfigured` tells when it does."""
        memfd = write_owning_memfd(what)
        self._links[worker].send(ApplySettings(1), memfd)
        os.close(memfd)

    async def settle(self) -> None:
        """Wait until nobody has anything to do; takes the workers' events."""
        await trio.testing.wait_all_tasks_blocked()
        for worker, link in enumerate(self._links):
            with suppress(BlockingIOError):
                while (event := link.receive_event()) is not None:
                    if isinstance(event, ClientLeft):
                        self.gone[event.client] = event.reason
                    elif isinstance(event, SettingsApplied):
                        self.reconfigured.append(worker)

    async def compact(self) -> None:
        """Compact the table, as the front does: woken once, every worker has read the last one."""
        await self._wake_all()
        with self.memory.lock as words:
            assert all_have_read(self.memory, words), "a worker was woken and has not read"
            compaction = Compaction(self.memory, words)
        while compaction.step():
            pass
        with self.memory.lock as words:
            assert compaction.finish(words)
        await self._wake_all()

    async def _wake_all(self) -> None:
        self.memory.wake((1 << WORKERS) - 1)
        await self.settle()

    def counts(self) -> Counter[str]:
        """What the workers counted, by code."""
        found: Counter[str] = Counter()
        for worker in self.workers:
            refused = worker.context.statistics.counts[REFUSED:LATENCY]
            found.update(dict(zip(PACKET_CODES, refused, strict=True)))
        return +found

    def index_sizes(self) -> list[tuple[int, int]]:
        """Nodes and subscriptions in every worker's index."""
        found = [worker.router._index.statistics() for worker in self.workers]
        return [(statistics.nodes, statistics.subscriptions) for statistics in found]

    def check_invariants(self) -> None:
        with self.memory.lock as words:
            self._log.check_invariants(words)
            assert not self._log.statistics(words).used_bytes, "everybody rests: all is walked"
        subscriptions = subscription_bytes = 0
        for worker in self.workers:
            worker.router._index.check_invariants()
            worker.router.cache.check_invariants()
            assert not worker.wait_queue._waits
            assert not worker.context.stalls.any_stalled()
            for session in worker.sessions:
                subscriptions += sum(session.patterns.values())
                subscription_bytes += session.subscription_bytes
                ledger = session.outbox.statistics()
                assert ledger.delivered == ledger.accepted - ledger.undelivered
                assert ledger.dropped == ledger.backlog == ledger.backlog_bytes == 0
                assert not session.has_pending()
        assert self.account.use(SUBSCRIPTIONS) == subscriptions
        assert self.account.use(SUBSCRIPTION_BYTES) == subscription_bytes
        assert self.account.use(BACKLOG_BYTES) == 0

    async def stop(self) -> None:
        for link in self._links:
            link.send(Stop())
        await trio.testing.wait_all_tasks_blocked()
        for link in self._links:
            link.close()


@asynccontextmanager
async def one_process_bus(dialect: str, limits: Limits) -> AsyncIterator[OneProcessBus]:
    """A bus that serves inside the block, and must end by itself behind it."""
    async with trio.open_nursery() as nursery:
        bus = OneProcessBus(dialect, limits, nursery)
        try:
            await bus.start()
            await bus.settle()
            yield bus
            await bus.stop()
            assert not nursery.child_tasks, "a worker did not end"
        finally:
            nursery.cancel_scope.cancel()
            close_memory(bus.memory)
