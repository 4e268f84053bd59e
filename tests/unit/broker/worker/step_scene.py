"""One worker on real sockets and a real shared memory, beside others that it shares that with.

`Scene` does what is asked of it with either ordinary step, and `observe` tells everything that
could differ between the two: the shared memory byte for byte, what clients received, statistics,
costs, and what is pending.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast
from unittest.mock import patch

import msgspec

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.config.settings import BusSettings
from sbus.broker.delivery import fan_out_times
from sbus.broker.delivery.backpressure import Backpressure, BackpressureListener, BackpressureRule
from sbus.broker.delivery.fan_out_times import FanOutTimes
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.outbox_listener import OutboxListener
from sbus.broker.delivery.send_times import TimedSocket
from sbus.broker.ipc.worker_link import WorkerLink
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.monitor import MessageMonitor
from sbus.broker.worker.ordinary_step import PythonStep
from sbus.broker.worker.publish_batch import gather
from sbus.broker.worker.router import Router
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Connection, Session
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.errors import Misbehaviour
from sbus.limits import Limits
from sbus.protocol.controls import FloodChoice, Soft
from sbus.protocol.keys import SLASH
from sbus.shared.account_book import AccountBook
from sbus.shared.client_slots import SLOT_WORDS
from sbus.shared.in_flight import InFlight
from sbus.shared.shared_memory import (
    LOG_CONTENDERS,
    LOG_HEAD,
    LOG_WAITERS,
    STEP_BATCH,
    STEP_END,
    WORDS_PER_WORKER,
    WORKER_WORDS,
    SharedMemory,
)
from sbus.unix.credentials import Credentials
from sbus.unix.fd_passing import refuse_descriptors
from tests.support import compiled_step
from tests.support.events import logging_to
from tests.unit.shared.memories import was_woken

LIMITS = Limits(
    log_bytes=4096,
    table_bytes=16 * 1024,
    packet_bytes_max=300,
    batch_packets_max=8,
    batch_bytes_max=500,
    users_max=2,
    backlog_bytes_max=2_000,
    blocking_clients_max=2,
)
QUANTUM = 16
WORKERS = 3
UIDS = (1000, 1001)
SUBORDINATE = 100_000
"""More than its user's id is that of the third and the fifth client."""
NO_RULES = AccessProfile(publish=0, subscribe=0, may_block_others=False)
CLOCK_START_NS = 5_000_000_000_000
TOLD_NS = 20_000
"""A little more than an ordinary delivery takes."""


class Unheard:
    """Takes what an outbox tells its worker."""

    def __getattr__(self, _name: str) -> object:
        return lambda *_: None


class SlowListener(Unheard):
    """Takes time when an outbox begins to miss messages, or has no room. Python makes these
    deliveries with either step, which measures them."""

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock

    def wait_for_time(self) -> None:
        self._clock.advance(TOLD_NS)

    def watch_room(self, _is_watched: bool) -> None:
        self._clock.advance(TOLD_NS)


class UnheardLink:
    """A link to no front."""

    def send(self, _event: object) -> None: ...


class Client:
    """A client of a worker: its session and its own end of the connection."""

    def __init__(self, worker: int, session: Session, peer: socket.socket) -> None:
        self.worker = worker
        self.session = session
        self.peer = peer
        self.received: list[bytes] = []
        self.handled: list[bytes] = []
        """Packets that were no publishable messages."""

    def tell_sender(self, wants_sender: bool) -> None:
        self.session.outbox.wants_sender = wants_sender

    def read(self, packets_max: int) -> None:
        with suppress(BlockingIOError, ConnectionError):
            while packets_max and self.peer.fileno() >= 0:
                packets_max -= 1
                self.received.append(self.peer.recv(1000))

    def send(self, packets: list[bytes]) -> None:
        with suppress(BlockingIOError, ConnectionError):
            for packet in packets:
                if self.peer.fileno() >= 0:
                    self.peer.send(packet)

    def send_with_descriptor(self, packet: bytes) -> None:
        with suppress(BlockingIOError, ConnectionError, PermissionError):
            if self.peer.fileno() >= 0:
                socket.send_fds(self.peer, [packet], [self.peer.fileno()])


class Clock:
    """The time of everything in this process, compiled code included."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.set(CLOCK_START_NS)

    def set(self, now_ns: int) -> None:
        self.now_ns = now_ns
        compiled_step.set_clock(now_ns)

    def advance(self, ns: int) -> None:
        self.set(self.now_ns + ns)


@contextmanager
def stopped_clock() -> Iterator[Clock]:
    """A clock that only `advance` moves."""
    clock = Clock()
    with (
        patch.object(time, "monotonic_ns", lambda: clock.now_ns),
        patch.object(time, "thread_time_ns", lambda: clock.now_ns),
        patch.object(time, "perf_counter", lambda: clock.now_ns / 1e9),
    ):
        yield clock
    clock.set(0)


class Scene:
    """Three workers and their clients; the first worker uses this ordinary step. Each user may
    publish so many messages in a second. Without a clock, nothing takes time."""

    def __init__(
        self, *, compiled: bool, rate: int = 1_000_000, clock: Clock | None = None
    ) -> None:
        self._listener = cast(OutboxListener, SlowListener(clock) if clock else Unheard())
        self._limits = msgspec.structs.replace(LIMITS, user_messages_per_second_max=rate)
        self.memory = SharedMemory(WORKERS, LIMITS)
        self.memory.lock.open()
        log_end = self.memory.log_offset + self.memory.log_bytes
        self.memory.map[self.memory.log_offset : log_end] = b"\xaa" * self.memory.log_bytes
        with self.memory.lock as words:
            words[LOG_HEAD] = 3 * LIMITS.log_bytes - 256  # soon a block does not fit before the end
        self._book = AccountBook(self.memory.accounts, WORKERS, LIMITS)
        self.contexts = [self._context(worker) for worker in range(WORKERS)]
        self.routers = [Router(worker, SLASH, LIMITS) for worker in range(WORKERS)]
        self.sequencers = [
            Sequencer(context, router, MessageMonitor(context.worker))
            for context, router in zip(self.contexts, self.routers, strict=True)
        ]
        self.subscriptions = [
            Subscriptions(context, sequencer, router)
            for context, sequencer, router in zip(
                self.contexts, self.sequencers, self.routers, strict=True
            )
        ]
        for worker, sequencer in enumerate(self.sequencers):
            if not (compiled and worker == 0):
                sequencer._step = PythonStep(self.contexts[worker])
                sequencer._walker._step = sequencer._step
            self.subscriptions[worker].start()
        self.costs: list[object] = []
        self._numbers = 0
        self.clients = [self._connect(worker) for worker in (0, 0, 0, 1, 2)]

    def close(self) -> None:
        for client in self.clients:
            client.peer.close()
            client.session.sock.close()
        self.memory.close()

    def _context(self, worker: int) -> WorkerContext:
        settings = BusSettings(workers=WORKERS, limits=LIMITS)
        link = cast(WorkerLink, UnheardLink())
        context = WorkerContext(worker, self.memory, settings, logging_to([]), link)
        context.fan_out_times = times = FanOutTimes(100, small=0)
        times.words[fan_out_times._FACTOR] = 1 << 54  # so the recipient's account is the place
        return context

    def _connect(self, worker: int) -> Client:
        self._numbers += 1
        number = self._numbers
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
        if number == 1:
            refuse_descriptors(ours)
        uid = UIDS[number % 2]
        opened = self._book.of(uid, self._limits.user, 0)
        assert opened is not None
        context = self.contexts[worker]
        account = context.accounts[opened.place]
        own = Credentials(gid=1, uid=uid + SUBORDINATE * (number in (3, 5)), pid=1)
        choice = context.settings.flood_control
        timed = TimedSocket(ours, account.place, context.send_times)
        outbox = Outbox(timed, choice, LIMITS, account, context.statistics, self._listener)
        slot = context.client_slots[number]
        outbox.use_slot(slot)
        outbox.use_origin(context.origin)
        connection = Connection(number, own, account, ours, slot)
        session = Session(connection, outbox, NO_RULES, LIMITS)
        self.subscriptions[worker].add_client(session)
        return Client(worker, session, theirs)

    # -- what happens --------------------------------------------------------------------------
    def subscribe(self, client: Client, pattern: bytes) -> None:
        worker = client.worker
        if pattern not in client.session.patterns:
            with suppress(Misbehaviour):
                self.subscriptions[worker].subscribe(client.session, pattern)

    def unsubscribe(self, client: Client, pattern: bytes) -> None:
        worker = client.worker
        if pattern in client.session.patterns:
            self.subscriptions[worker].unsubscribe(client.session, pattern)

    def turn(self, client: Client) -> None:
        """Serve a client as the scheduler does; packets that are no messages are only noted."""
        session, worker = client.session, client.worker
        sequencer, router = self.sequencers[worker], self.routers[worker]
        cost = sequencer.serve(session, 1, QUANTUM)
        wait = None
        while cost < QUANTUM and session.has_pending() and wait is None:
            batch = gather(session, router.cache.recent, router.look_up, QUANTUM - cost)
            if batch.messages:
                wait = sequencer.publish(batch)
                batch.count_published()
                cost += 1 + batch.cost
            else:
                client.handled.append(session.packets[session.done])
                session.skip()
                cost += 2
        self.costs.append((cost, None if wait is None else wait.reason))

    def walk(self, worker: int) -> None:
        self.sequencers[worker].walk_on(50)
        self.costs.append(sorted(self.sequencers[worker].take_walking_cost().items()))

    def barrier(self, worker: int) -> None:
        self.sequencers[worker].barrier()

    def choose(self, client: Client, choice: FloodChoice) -> None:
        client.session.outbox.choose(choice)

    def send_backlog(self, client: Client) -> None:
        if not client.session.outbox.is_flowing and not client.session.outbox.is_closed:
            self.costs.append(client.session.outbox.send_backlog(20))

    def send_slowly(self, client: Client, spent_ns: int) -> None:
        """A timed send to this client has taken so long."""
        times = self.contexts[client.worker].send_times
        times.charge(client.session.account_place, spent_ns, time.monotonic_ns())

    def take_time(self, client: Client, spent_ns: int) -> None:
        """Deliveries of another user's messages to this client's user have taken so long."""
        times = self.contexts[client.worker].fan_out_times
        own = client.session.account_place
        others = (other.session.account_place for other in self.clients)
        at = times._find(next(place for place in others if place != own), own)
        for _ in range(spent_ns // 1_000_000):
            times._charge(at, 1_000_000, 1_000_000)

    def note_sleep(self, worker: int, slept_ns: int) -> None:
        self.contexts[worker].fan_out_times.note_sleep(slept_ns)

    def poke(self, worker: int | None, word: int, value: int) -> None:
        """Change a control word, of a worker or of all."""
        at = 0 if worker is None else WORKER_WORDS + worker * WORDS_PER_WORKER
        with self.memory.lock as words:
            words[at + word] = value

    def enable_backpressure(self, client: Client) -> None:
        """Let a client hold publishers back, if none does yet: which of several stalled clients a
        publisher waits for is not determined."""
        session, context = client.session, self.contexts[client.worker]
        if any(other.session.backpressure is not None for other in self.clients):
            return
        place = context.stalls.take_place()
        assert place is not None
        rule = BackpressureRule(
            session.client, place, session.account.place, session.credentials, session.profile
        )
        listener = cast(BackpressureListener, Unheard())
        session.enable_backpressure(
            Backpressure(
                rule, session.account, self.memory, context.stalls, context.statistics, listener
            )
        )
        self.subscriptions[client.worker].add_rule(session)
        for _ in range(20):
            self.subscriptions[client.worker].make_background_step()

    def stall(self, client: Client) -> None:
        """Let a client hold publishers back, from now on until it has read everything."""
        self.enable_backpressure(client)
        client.session.outbox.choose(Soft.BLOCK)
        if client.session.backpressure is not None:
            client.session.backpressure.stall()

    def wait_for_first(self, users: int) -> None:
        """Have other workers wait until the first worker has walked, for so many users."""
        self.poke(0, LOG_WAITERS, 0b110)
        self.poke(0, LOG_CONTENDERS, users)

    def everybody_reads(self) -> None:
        for client in self.clients:
            client.read(100)

    def learn(self, key: bytes) -> None:
        """Have the key in the route cache."""
        self.routers[0].look_up(key)

    # -- what can be seen ----------------------------------------------------------------------
    def observe(self) -> dict[str, object]:
        """Everything that must not depend on the step."""
        return {
            "control words": self._control_words(),
            "shared memory": self._shared_bytes(),
            "in flight": [self._observe_in_flight(worker) for worker in range(WORKERS)],
            "woken": [was_woken(self.memory, worker) for worker in range(WORKERS)],
            "statistics": [list(context.statistics.counts) for context in self.contexts],
            "costs": list(self.costs),
            "logs": [
                (log.cursor, log.entries, log.window, log.entry_bytes)
                for log in (it._log for it in self.sequencers)
            ],
            "fan-outs": [self._observe_fan_outs(worker) for worker in range(WORKERS)],
            "clients": [self._observe_client(client) for client in self.clients],
        }

    def _control_words(self) -> list[int]:
        with self.memory.lock as words:
            found: list[int] = words.tolist()
        for worker in range(WORKERS):
            own = WORKER_WORDS + worker * WORDS_PER_WORKER
            found[own + STEP_BATCH] = found[own + STEP_END] = 0  # see `_observe_in_flight`
        return found

    def _observe_in_flight(self, worker: int) -> object:
        """Attempts to publish have numbers, and the compiled step makes more of them."""
        in_flight = InFlight(self.memory, worker)
        with self.memory.lock as words:
            return in_flight.walked()[0], in_flight.interrupted_batch(words)

    def _observe_fan_outs(self, worker: int) -> object:
        """Time that has paid, what pairs of users owe, and whether their time is spent."""
        words = self.contexts[worker].fan_out_times.words
        times, pairs = words[: fan_out_times._FIRST_PAIR], words[fan_out_times._FIRST_PAIR :]
        seen = (fan_out_times._PAIR, fan_out_times._OWED_NS, fan_out_times._IS_SPENT)
        columns = zip(*(pairs[word :: fan_out_times._PAIR_WORDS] for word in seen), strict=True)
        paid = times[fan_out_times._SLEPT_NS], times[fan_out_times._USED_NS :].tolist()
        return paid, [pair for pair in columns if pair[0]]

    def _shared_bytes(self) -> bytes:
        """All but the control words, as a critical section that was abandoned leaves its traces in
        the spare copy, but for slots that nobody has, and for what is in flight."""
        memory = self.memory
        slots = memory.client_slots[: SLOT_WORDS * (self._numbers + 1)]
        parts = (memory.statistics, memory.operations, memory.accounts, memory.stalls, slots)
        log_and_table = memory.map[memory.log_offset :]
        return b"".join((*(part.tobytes() for part in parts), log_and_table))

    def _observe_client(self, client: Client) -> dict[str, object]:
        session, outbox = client.session, client.session.outbox
        return {
            "received": list(client.received),
            "handled": list(client.handled),
            "pending": session.packets[session.done :],
            "read": (session.is_readable, session.has_ended, session.received_us),
            "counts": (session.messages_in, session.bytes_in, session.refused),
            "outbox": outbox.statistics(),
            "delivered bytes": outbox.delivered_bytes,
            "dropped": dict(outbox.dropped),
            "flowing": (outbox.is_flowing, outbox.is_closed, outbox.fault is None),
        }
