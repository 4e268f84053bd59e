"""Whole workers on real sockets and one real shared memory, in one process.

The machines get ticks in turns. A pretended front hands clients over, learns which have left and
compacts the table when told to. `settle` is a barrier that real processes do not have: afterwards
every worker would sleep.
"""

import os
import select
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterator
from contextlib import contextmanager, suppress
from typing import cast
from unittest.mock import patch

import trio

from sbus.broker.config.access_policy import encode_rule_set
from sbus.broker.config.settings import BusSettings, SettingsUpdate, write_owning_memfd
from sbus.broker.front.reaper import Reaper
from sbus.broker.ipc.worker_link import WorkerLink
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    ApplySettings,
    ClientLeft,
    InheritClient,
    QueryReply,
    SettingsApplied,
    Stop,
    TakeOver,
    TookOver,
    WorkerCommand,
    WorkerEvent,
    WorkerQuiesced,
)
from sbus.broker.worker import ordinary_step
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.poller import Poller
from sbus.broker.worker.session import Session
from sbus.broker.worker_process import Worker, build_worker
from sbus.compiled import STEP
from sbus.limits import Limits
from sbus.protocol.codes import PACKET_CODES
from sbus.protocol.controls import SENDER_BYTES_MAX, FloodControl
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import BACKLOG_BYTES, SUBSCRIPTION_BYTES, SUBSCRIPTIONS, Account
from sbus.shared.client_slots import ClientSlots
from sbus.shared.compaction import Compaction
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.shared.subscription_table import all_have_read
from sbus.shared.worker_statistics import LATENCY, REFUSED, ROUTE_LOOKUPS
from sbus.unix.credentials import Credentials
from sbus.unix.socket_cookie import socket_cookie
from tests.support.events import logging_to

WORKERS = 2
CREDENTIALS = Credentials(gid=100, uid=1000, pid=4711)
_DEFAULT_CHOICE = FloodControl()
_ROUNDS_MAX = 1_000_000
"""Of ticks, in which the workers come to rest."""


class NoTasks:
    """A nursery that starts nothing: no test here has a slow front or a slow watcher."""

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        raise AssertionError(f"{task} would have to wait")


class SteppedWorker:
    """A worker without a process: its machine, and the driver's part."""

    def __init__(
        self, number: int, memory: SharedMemory, settings: BusSettings, link: socket.socket
    ) -> None:
        self.poller = Poller(memory.eventfds[number], link)
        self._link = link
        tasks = cast(trio.Nursery, NoTasks())
        emitter = logging_to([])
        context = WorkerContext(number, memory, settings, emitter, WorkerLink(link, tasks))
        self.parts = build_worker(context, self.poller, tasks)
        self.has_ended = False

    def tick(self) -> float:
        """One tick, after a poll; for how many seconds the worker would sleep then."""
        seconds_max = self.parts.machine.tick(self.poller.poll(0))
        if seconds_max is None:
            self.end()
            return 0.0
        return seconds_max

    def poll(self, seconds_max: float) -> list[tuple[int, int]]:
        """Sleep as the driver of a process does; returns what a tick is to be given."""
        return self.parts.machine.poll(self.poller, seconds_max)

    def is_awake(self) -> bool:
        """Give a tick, unless the worker has ended; whether there is more to do."""
        return not self.has_ended and self.tick() == 0

    def has_ready(self) -> bool:
        if self.has_ended:
            return False
        readable = select.poll()
        readable.register(self.poller, select.POLLIN)
        return bool(readable.poll(0))

    def die(self) -> None:
        """End at once, as a process that is killed."""
        self.has_ended = True
        sessions = self.parts.sessions
        for session in (*sessions, *sessions.arriving.values()):
            session.secret_recipient.close()
            session.sock.close()
        self.poller.close()
        self._link.close()

    def end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self.parts.end()
            self.poller.close()
            self._link.close()


class Peer:
    """A client's end of a connection to worker `worker`."""

    def __init__(self, number: int, worker: int, sock: socket.socket, packet_bytes: int) -> None:
        self.number = number
        self.worker = worker
        self.ended = False
        self.sock = sock
        self._packet_bytes = packet_bytes
        sock.setblocking(False)

    def send(self, packet: bytes) -> None:
        assert self.sock.send(packet) == len(packet)

    def read(self, packets_max: int = 1_000_000) -> list[bytes]:
        """What is here now."""
        packets: list[bytes] = []
        with suppress(BlockingIOError):
            while not self.ended and len(packets) < packets_max:
                packet = self.sock.recv(self._packet_bytes + SENDER_BYTES_MAX)
                if packet:
                    packets.append(packet)
                else:
                    self.ended = True
        return packets

    def close(self) -> None:
        self.sock.close()


class OneProcessBus:
    """`workers`, and what the front would do for them."""

    def __init__(
        self,
        dialect: str,
        limits: Limits,
        workers: int = WORKERS,
        flood_control: FloodControl = _DEFAULT_CHOICE,
    ) -> None:
        self._limits = limits
        self.memory = SharedMemory(workers, limits)
        self.memory.lock.open()
        self._log = OrderedLog(self.memory)
        self._link_sockets: list[socket.socket] = []
        self._links: list[WorkerLink] = []
        self._peers: list[Peer] = []
        self.stepped: list[SteppedWorker] = []
        self.workers: list[Worker] = []
        """Their parts."""
        self.gone: dict[int, str] = {}
        """Why clients have gone, by number, since this was last emptied."""
        self.quiesced: list[int] = []
        """Workers that have reported that nothing more is published there."""
        self.replies: list[QueryReply] = []
        """To queries, in the order of their arrival."""
        self.other_events: list[WorkerEvent] = []
        """In the order of their arrival."""
        self.inherited: list[int] = []
        """How many clients successors took over, in the order of that."""
        self.reconfigured: list[int] = []
        """Who went by other settings when told to, since this was last emptied."""
        self.stopped: set[int] = set()
        """Workers that get no ticks."""
        self._numbers = 0
        self._slots = ClientSlots(self.memory.client_slots)
        self.book = AccountBook(self.memory.accounts, workers, limits)
        stalls = StallTable(self.memory.stalls, limits.blocking_clients_max, None)
        self._reaper = Reaper(self.memory, self.book, stalls)
        self.account = self.account_of(CREDENTIALS.uid)
        """The account of the user that clients belong to by default."""
        self._settings = BusSettings(
            workers=workers, dialect=dialect, limits=limits, flood_control=flood_control
        )

    def start(self) -> None:
        """Start the workers."""
        for number in range(self.memory.workers):
            self._start(number).start()

    def _start(self, number: int) -> Worker:
        """Make the worker of this number, in place of an earlier one."""
        front, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link_sockets.append(front)
        self._links[number : number + 1] = [WorkerLink(front, cast(trio.Nursery, NoTasks()))]
        worker = SteppedWorker(number, self.memory, self._settings, link)
        self.stepped[number : number + 1] = [worker]
        self.workers[number : number + 1] = [worker.parts]
        return worker.parts

    def replace(
        self,
        worker: int,
        *,
        without: Container[int] = (),
        arriving: Container[int] = (),
        is_late: bool = False,
    ) -> None:
        """Let a worker die, and a successor take over all of its clients but some, which have
        left, and of those that were handed over to the worker. The log is not kept for one that
        `is_late`."""
        self.succeed(worker, self.reap(worker, without, arriving, is_late=is_late))

    def reap(
        self,
        worker: int,
        without: Container[int] = (),
        arriving: Container[int] = (),
        *,
        is_late: bool = False,
    ) -> list[tuple[Session, int]]:
        """Let a worker die; returns the clients that a successor is to take over, with their
        descriptors."""
        dead = self.stepped[worker]
        for session in dead.parts.sessions:
            if session.client in without:
                self._slots[session.client].disconnect()
        left = [session for session in dead.parts.sessions if session.client not in without]
        handed_over = dead.parts.sessions.arriving.items()
        left += [session for client, session in handed_over if client in arriving]
        clients = [(session, os.dup(session.sock.fileno())) for session in left]
        dead.die()
        trio.run(self._reaper.reap, worker)
        if is_late:
            trio.run(self._reaper.release_log, worker)
        return clients

    def succeed(
        self,
        worker: int,
        clients: list[tuple[Session, int]],
        update: SettingsUpdate | None = None,
    ) -> None:
        """Let a successor take over these clients of a dead worker; an `update` comes between."""
        parts = self._start(worker)
        for session, fd in clients:
            own, place, number = session.credentials, session.account_place, session.client
            adoption = AdoptClient(number, own, place, encode_rule_set(0), number)
            self._links[worker].send(InheritClient(adoption), fd)
            os.close(fd)
        if update is not None:
            self.reconfigure(worker, update)
        self._links[worker].send(TakeOver())
        assert parts.succeed()

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
            self.give_slot(self._numbers, ours)
            link = self._links[worker]
            place = self.account_of(own.uid).place
            rule_set = encode_rule_set(rules)
            link.send(
                AdoptClient(self._numbers, own, place, rule_set, self._numbers), ours.fileno()
            )
            assert not link.queued
        peer = Peer(self._numbers, worker, theirs, self._limits.packet_bytes_max)
        self._peers.append(peer)
        return peer

    def give_slot(self, number: int, sock: socket.socket) -> None:
        """The slot of this number belongs to the client with this number and this socket, until a
        worker reports that it has left."""
        self._slots[number].connect(number, socket_cookie(sock), time.time())

    def tell(self, worker: int, command: WorkerCommand, fd: int | None = None) -> None:
        """Send a worker a command of the front's; `fd` is borrowed."""
        self._links[worker].send(command, fd)

    def end_front(self, worker: int) -> None:
        """Let a worker find that the front has ended."""
        self._link_sockets[worker].shutdown(socket.SHUT_RDWR)

    def reconfigure(self, worker: int, what: SettingsUpdate) -> None:
        """Have a worker go by other settings; `reconfigured` tells when it does."""
        memfd = write_owning_memfd(what)
        self._links[worker].send(ApplySettings(1), memfd)
        os.close(memfd)

    def settle(self) -> None:
        """Give ticks until all workers would sleep; takes the workers' events."""
        stepped = [worker for at, worker in enumerate(self.stepped) if at not in self.stopped]
        for _ in range(_ROUNDS_MAX):
            is_any_awake = [worker.is_awake() for worker in stepped]
            if not any(is_any_awake) and not any(worker.has_ready() for worker in stepped):
                break
        else:
            raise AssertionError("the workers never come to rest")
        self._take_events()

    def _take_events(self) -> None:
        for worker, link in enumerate(self._links):
            with suppress(BlockingIOError):
                while (event := link.receive_event()) is not None:
                    if isinstance(event, ClientLeft):
                        self.gone[event.client] = event.reason
                        self._slots[event.client].disconnect()
                    elif isinstance(event, SettingsApplied):
                        self.reconfigured.append(worker)
                    elif isinstance(event, TookOver):
                        self.inherited.append(event.clients)
                    elif isinstance(event, WorkerQuiesced):
                        self.quiesced.append(worker)
                    elif isinstance(event, QueryReply):
                        self.replies.append(event)
                    else:
                        self.other_events.append(event)

    def compact(self) -> None:
        """Compact the table, as the front does: woken once, every worker has read the last one."""
        self._wake_all()
        with self.memory.lock as words:
            assert all_have_read(self.memory, words), "a worker was woken and has not read"
            compaction = Compaction(self.memory, words)
        while compaction.step():
            pass
        with self.memory.lock as words:
            assert compaction.finish(words)
        self._wake_all()

    def _wake_all(self) -> None:
        self.memory.wake((1 << self.memory.workers) - 1)
        self.settle()

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
            counts = worker.context.statistics.counts
            assert worker.router.cache.misses <= counts[ROUTE_LOOKUPS]
            assert not worker.wait_queue._waits
            assert not worker.sessions.presence.departures
            assert not worker.context.stalls.any_stalled()
            for session in worker.sessions:
                subscriptions += sum(session.patterns.values()) + bool(session.name)
                subscription_bytes += session.subscription_bytes
                ledger = session.outbox.statistics()
                assert ledger.delivered == ledger.accepted - ledger.undelivered
                assert ledger.dropped == ledger.backlog == ledger.backlog_bytes == 0
                assert not session.has_pending()
        assert self.account.use(SUBSCRIPTIONS) == subscriptions
        assert self.account.use(SUBSCRIPTION_BYTES) == subscription_bytes
        assert self.account.use(BACKLOG_BYTES) == 0

    def stop(self) -> None:
        for worker in range(self.memory.workers):
            self.tell(worker, Stop())
        self.settle()
        assert all(worker.has_ended for worker in self.stepped), "a worker did not end"

    def close(self) -> None:
        """Close what is open, even where a test failed."""
        for peer in self._peers:
            peer.close()
        for worker in self.stepped:
            worker.end()
        for sock in self._link_sockets:
            sock.close()
        self.memory.close()


@contextmanager
def one_process_bus(
    dialect: str,
    limits: Limits,
    workers: int = WORKERS,
    flood_control: FloodControl = _DEFAULT_CHOICE,
    *,
    step: str = STEP,
) -> Iterator[OneProcessBus]:
    """A bus that serves inside the block, and must end by itself behind it."""
    bus = OneProcessBus(dialect, limits, workers, flood_control)
    with patch.object(ordinary_step, "STEP", step):
        try:
            bus.start()
            bus.settle()
            yield bus
            bus.stopped.clear()
            bus.stop()
        finally:
            bus.close()
