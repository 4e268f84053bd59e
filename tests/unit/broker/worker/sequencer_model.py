"""Several sequencers in one process, and a bus in which every step is one instant.

`Bus` holds the workers, lets other workers act between any two holds of a worker's lock, and keeps
the model: who is subscribed to what, and what everybody is to receive. A step takes effect in the
model at the end of the hold that fixes its place in the order; `Hooked*` find that hold.
"""

import math
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import cast
from unittest.mock import patch

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.config.settings import BusSettings
from sbus.broker.delivery.backpressure import Backpressure, BackpressureRule
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.ipc.worker_link import WorkerLink
from sbus.broker.ipc.worker_protocol import WorkerEvent
from sbus.broker.worker import sequencer as sequencer_module
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.monitor import MessageMonitor
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.broker.worker.router import Router
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Connection, Session
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.broker.worker.wait_queue import Reason, Wait
from sbus.limits import Limits
from sbus.protocol.keys import SLASH
from sbus.shared import ordered_log as ordered_log_module
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import HOLDING, Account, Accounts
from sbus.shared.compaction import Compaction
from sbus.shared.log_block import LogBlock
from sbus.shared.log_share import LogShare
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import MemoryLock, SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.shared.subscription_table import SubscriptionTable, all_have_read
from sbus.shared.table_share import TableShare
from sbus.shared.worker_statistics import WorkerStatistics
from sbus.unix.credentials import Credentials
from tests.support.events import logging_to
from tests.unit.routing.specification import matches
from tests.unit.shared.memories import spare_slot, was_woken

LIMITS = Limits(
    log_bytes=1536,
    table_bytes=64 * 1024,
    route_cache_bytes_max=4096,
    users_max=2,
    user_held_seconds_max=1e9,
    blocking_clients_max=8,
)

SUBORDINATE = 100_000
"""More than its user's id is that of a third of the clients."""
COST_OF_EVERYTHING = 1_000_000
"""More than it costs to walk the whole log."""
EVERYTHING_SECRET = b"!/cred////"
"""The one secret pattern of this model: what names no user or one's own."""


class Collector:
    """A recipient that keeps what it is given."""

    backpressure: Backpressure | None = None
    slot_at = 0

    def __init__(self) -> None:
        self.outbox = self
        self.received: list[bytes] = []

    def deliver(self, packet: bytes, _publisher_account: int) -> None:
        self.received.append(packet)

    def decide_anew(self) -> None: ...


class RecordingLink:
    """A link to a front that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[WorkerEvent] = []

    def send(self, event: WorkerEvent) -> None:
        self.sent.append(event)


class ContextThatWakesNobody(WorkerContext):
    """The model looks for wake-ups by other workers."""

    def wake(self) -> None:
        pass


class HookedLock(MemoryLock):
    """Calls `on_release` after every critical section that ended well."""

    on_enter: Callable[[], None] | None = None
    on_release: Callable[[], None] | None = None

    @classmethod
    def instead_of(cls, memory: SharedMemory) -> "HookedLock":
        lock = memory.lock
        return cls(memory.fd, lock.words, lock.block_words)

    def __enter__(self) -> memoryview:
        if self.on_enter is not None:
            self.on_enter()
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        super().__exit__(kind, *details)
        if self.on_release is not None and kind is None:
            self.on_release()


class HookedLog(OrderedLog):
    """Notes whether a hold fixed a step's place, and whether the log had no room for it, or whether
    it was for a walk."""

    placed = False
    refused = False
    catches_up = False

    def destined_end(self, words: memoryview) -> int:
        self.placed = True
        return super().destined_end(words)

    def append(
        self, words: memoryview, log_block: LogBlock, share: LogShare, order_place: int = 0
    ) -> int:
        wake = super().append(words, log_block, share, order_place)
        self.refused |= wake < 0
        return wake


class HookedTable(SubscriptionTable):
    """Notes when the table had no room for a step."""

    log: HookedLog

    def append(
        self,
        words: memoryview,
        data: bytes,
        share: TableShare | None = None,
        *,
        edge: bool,
        frees: bool = False,
    ) -> bool:
        appended = super().append(words, data, share, edge=edge, frees=frees)
        self.log.refused |= not appended
        return appended

    def note_unread(self, words: memoryview) -> None:
        """A hold that ends with this is no step's: it is for a walk before the table is read."""
        self.log.placed, self.log.catches_up = False, True
        super().note_unread(words)


NO_RULES = AccessProfile(publish=0, subscribe=0, may_block_others=False)


class Unheard:
    """Takes what a client's back-pressure tells."""

    def on_stall(self, is_stalled: bool) -> None: ...

    def on_held_time_spent(self) -> None: ...


class Client:
    """A client of the model: its session, and what a perfect bus would have sent it."""

    def __init__(
        self, number: int, worker: int, account: Account, uid: int, sock: socket.socket
    ) -> None:
        self.worker = worker
        own = Credentials(gid=1, uid=uid + SUBORDINATE * (number % 3 == 0), pid=1)
        self.collector = Collector()
        connection = Connection(number, own, account, sock, spare_slot())
        self.session = Session(connection, cast(Outbox, self.collector), NO_RULES, LIMITS)
        self.subscriptions: Counter[bytes] = Counter()
        self.due: list[bytes] = []
        self.pending: list[tuple[bytes, bytes]] = []
        """Packets and keys that were read and have no place yet."""
        self.woken = False
        """Its worker was woken since it was last held."""
        self.waits_for_room = False
        self.waits_for: list[Client] = []
        """Those who had no room for its next message then."""

    @property
    def held(self) -> bool:
        return bool(self.pending)

    @property
    def stalled(self) -> bool:
        """It has no room, and chose to block."""
        backpressure = self.session.backpressure
        return backpressure is not None and backpressure.is_stalled

    def wants(self, key: bytes) -> bool:
        if key.startswith(EVERYTHING_SECRET[:6]):
            mine = key.split(b"/")[3] in (b"", b"%d" % self.session.uid)
            return mine and EVERYTHING_SECRET in self.subscriptions
        return any(matches(pattern, key, SLASH) for pattern in self.subscriptions)


class Bus:
    """The workers of one bus and the model of it."""

    def __init__(
        self,
        workers: int,
        clients_per_worker: int,
        limits: Limits = LIMITS,
        *,
        have_published: bool = False,
    ) -> None:
        """`have_published`: every worker reads the subscription table from the start on."""
        self.limits = limits
        self._have_published = have_published
        # Here a batch is a step, however long it takes.
        self._patience = patch.object(sequencer_module, "_LOOKUP_SECONDS_MAX", math.inf)
        self._patience.start()
        # Some walks copy what is left, others do not.
        self._small_pieces = patch.object(ordered_log_module, "_PIECE_BYTES_MAX", 200)
        self._small_pieces.start()
        self.effects = 0
        """Steps that took effect."""
        self.memory = SharedMemory(workers, limits)
        self.lock = self.memory.lock = HookedLock.instead_of(self.memory)
        self.lock.open()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link = RecordingLink()
        self.routers: list[Router] = []
        self.sequencers: list[Sequencer] = []
        self.subscriptions: list[Subscriptions] = []
        self.stalls: list[StallTable] = []
        self.accounts: list[Accounts] = []
        self.book = AccountBook(self.memory.accounts, workers, limits)
        self.logs: list[HookedLog] = []
        self.clients: list[Client] = []
        self.asleep = [False] * workers
        self.woken = [False] * workers
        """Woken since it last walked."""
        self.told_of_room = [False] * workers
        """Woken since the log last refused something of its."""
        self.numbers = 0
        self.compaction: Compaction | None = None
        self._clients_per_worker = clients_per_worker
        for worker in range(workers):
            self._start(worker)

    def close(self) -> None:
        self._patience.stop()
        self._small_pieces.stop()
        self.lock.on_enter = self.lock.on_release = None
        self.sock.close()
        self.memory.close()

    def _start(self, worker: int) -> None:
        settings = BusSettings(workers=self.memory.workers, limits=self.limits)
        link = cast(WorkerLink, self.link)
        context = ContextThatWakesNobody(worker, self.memory, settings, logging_to([]), link)
        router = Router(worker, SLASH, self.limits)
        with (
            patch.object(sequencer_module, "OrderedLog", HookedLog),
            patch.object(sequencer_module, "SubscriptionTable", HookedTable),
        ):
            sequencer = Sequencer(context, router, MessageMonitor(worker))
        log, table = cast(HookedLog, sequencer._log), cast(HookedTable, sequencer._table)
        table.log = log
        subscriptions = Subscriptions(context, sequencer, router)
        subscriptions.start()
        if self._have_published:
            assert sequencer.read_table()
        self.routers[worker : worker + 1] = [router]
        self.sequencers[worker : worker + 1] = [sequencer]
        self.logs[worker : worker + 1] = [log]
        self.subscriptions[worker : worker + 1] = [subscriptions]
        self.stalls[worker : worker + 1] = [context.stalls]
        self.accounts[worker : worker + 1] = [context.accounts]
        for _ in range(self._clients_per_worker):
            self.connect(worker)

    def connect(self, worker: int) -> Client:
        self.numbers += 1
        uid = 1 + self.numbers % 2
        account = self.book.of(uid, self.limits.user, 0)
        assert account is not None
        own = self.accounts[worker][account.place]
        client = Client(self.numbers, worker, own, uid, self.sock)
        self.subscriptions[worker].add_client(client.session)
        self.clients.append(client)
        return client

    def of_worker(self, worker: int) -> list[Client]:
        return [client for client in self.clients if client.worker == worker]

    # -- steps ---------------------------------------------------------------------------------
    def step(
        self,
        worker: int,
        act: Callable[[Sequencer], bool],
        effect: Callable[[], None],
        meanwhile: Callable[[], None],
    ) -> bool:
        """Do one step of a worker, others acting at every release of the lock; check it.

        When it took effect, all clients of that worker have received exactly what was due at its
        instant. When it did not, nothing happened.
        """
        lock, log = self.lock, self.logs[worker]
        due_then: list[tuple[Client, int]] = []
        placed = False

        def on_enter() -> None:
            log.placed = log.refused = log.catches_up = False

        def on_release() -> None:
            nonlocal placed
            is_instant = log.placed and not log.refused and not placed
            if is_instant:
                placed = True
                effect()
                self.effects += 1
            if is_instant or (placed and log.catches_up):
                due_then[:] = [(client, len(client.due)) for client in self.of_worker(worker)]
            lock.on_enter = lock.on_release = None
            meanwhile()
            lock.on_enter, lock.on_release = on_enter, on_release

        outer = (lock.on_enter, lock.on_release)
        lock.on_enter, lock.on_release = on_enter, on_release
        try:
            done = act(self.sequencers[worker])
        finally:
            lock.on_enter, lock.on_release = outer
        assert done == placed, "a step has one instant if it was done, and none if it was not"
        for client, due in due_then:
            assert client.collector.received == client.due[:due]
        for client in self.clients:
            assert client.collector.received == client.due[: len(client.collector.received)]
        return done

    def publish(self, client: Client, keys: list[bytes], meanwhile: Callable[[], None]) -> bool:
        """Publish a batch, or try again what was held; False when all of it had to wait for room.

        A message for a client of the publisher's own user that has no room is held, and all behind
        it; what comes before it is published. Who has room is looked up before the hold, so where
        that changes in between, more or less than that may be published, but never out of order.
        """
        session, router = client.session, self.routers[client.worker]
        if not client.pending:
            for key in keys:
                self.numbers += 1
                client.pending.append((b"MSG %b\0%d" % (key, self.numbers), key))
        pending = client.pending
        batch = PublishBatch(session)
        for packet, key in pending:
            batch.add(packet, key, session.own_route(router.look_up(key)))
        before = self.who_holds_whom(session.account_place), self.effects
        published = 0
        must_wait = False
        wait: Wait | None = None

        def effect() -> None:
            nonlocal published, must_wait
            published = len(batch.messages)
            if (self.who_holds_whom(session.account_place), self.effects) == before:
                # Fewer where all would occupy another worker for too long.
                unheld = self.unheld(client)
                assert min(1, unheld) <= published <= unheld
                must_wait = published == unheld < len(pending)
            for packet, key in pending[:published]:
                for other in self.clients:
                    if other.wants(key) and (session.echo or other is not client):
                        other.due.append(packet)

        def act(sequencer: Sequencer) -> bool:
            nonlocal wait
            wait = sequencer.publish(batch)
            return wait is None or wait.reason is not Reason.ROOM

        client.woken = False
        done = self.step(client.worker, act, effect, meanwhile)
        self.look()
        assert [packet for packet, _, _ in batch.messages] == [
            packet for packet, _ in pending[:published]
        ]
        del pending[:published]
        client.waits_for = []
        client.waits_for_room = not done
        if not done:
            self.told_of_room[client.worker] = False
        elif wait is not None:
            assert pending
            assert (wait.reason, wait.account_place) == (Reason.STALL, session.account.place)
            assert session.account.use(HOLDING)
            client.waits_for = self.stalled_for(client, pending[0][1])
        else:
            assert not must_wait
        return done

    def who_holds_whom(self, account_place: int) -> list[tuple[int, Counter[bytes]]]:
        """The stalled clients of a user, and by which patterns."""
        return [
            (client.session.client, Counter(client.subscriptions))
            for client in self.clients
            if client.stalled and client.session.account_place == account_place
        ]

    def stalled_for(self, publisher: Client, key: bytes) -> list[Client]:
        """Who of the publisher's user would receive a message and has no room."""
        return [
            client
            for client in self.clients
            if client.stalled
            and client.session.account_place == publisher.session.account_place
            and client.wants(key)
            and (publisher.session.echo or client is not publisher)
        ]

    def unheld(self, publisher: Client) -> int:
        """How many of the messages that it has to publish need not wait for anybody."""
        for number, (_, key) in enumerate(publisher.pending):
            if self.stalled_for(publisher, key):
                return number
        return len(publisher.pending)

    def subscribe(self, client: Client, pattern: bytes, meanwhile: Callable[[], None]) -> bool:
        return self.step(
            client.worker,
            lambda _: self.subscriptions[client.worker].subscribe(client.session, pattern),
            lambda: client.subscriptions.update([pattern]),
            meanwhile,
        )

    def unsubscribe(self, client: Client, pick: int, meanwhile: Callable[[], None]) -> bool:
        pattern = sorted(client.subscriptions)[pick % len(client.subscriptions)]

        def effect() -> None:
            client.subscriptions = client.subscriptions - Counter([pattern])

        return self.step(
            client.worker,
            lambda _: self.subscriptions[client.worker].unsubscribe(client.session, pattern),
            effect,
            meanwhile,
        )

    def barrier(self, worker: int, meanwhile: Callable[[], None]) -> None:
        def act(sequencer: Sequencer) -> bool:
            sequencer.barrier()
            return True

        self.step(worker, act, lambda: None, meanwhile)

    def walk_on(self, worker: int, meanwhile: Callable[[], None]) -> None:
        """Walk everything that is destined to a worker."""

        def act(sequencer: Sequencer) -> bool:
            sequencer.walk_on(COST_OF_EVERYTHING)
            return True

        self.take_wake(worker)
        self.step(worker, act, lambda: None, meanwhile)
        is_caught_up = self.sequencers[worker].is_caught_up
        self.asleep[worker] = not self.subscriptions[worker].make_background_step() and is_caught_up

    def walk_piece(self, worker: int) -> None:
        """Walk the next block that is destined to a worker."""
        self.sequencers[worker].walk_on(1)

    def take_wake(self, worker: int) -> None:
        """A worker finds that it was woken, if it was."""
        self.look()
        if self.woken[worker]:
            self.woken[worker] = False
            self.sequencers[worker].look_again()

    def leave(self, client: Client) -> None:
        """A client goes; another one comes to the same worker."""
        self.clients.remove(client)
        session, worker = client.session, client.worker
        self.subscriptions[worker].remove_client(session)
        if session.backpressure is not None:
            self.resume(client)
            self.stalls[worker].give_back(session.backpressure.rule.place)
        self.connect(worker)

    def block(self, client: Client) -> None:
        """A client chooses to hold publishers back; background steps do it for its patterns."""
        session, worker = client.session, client.worker
        place = self.stalls[worker].take_place()
        assert place is not None
        session.backpressure = Backpressure(
            BackpressureRule(
                session.client, place, session.account.place, session.credentials, NO_RULES
            ),
            session.account,
            self.memory,
            self.stalls[worker],
            WorkerStatistics(),
            Unheard(),
        )
        self.subscriptions[worker].add_rule(session)

    def make_background_steps(self, worker: int) -> None:
        """All that can be done now."""
        while self.subscriptions[worker].make_background_step():
            pass

    def stall(self, client: Client) -> None:
        """A client that blocks has no room from now on."""
        assert client.session.backpressure is not None
        client.session.backpressure.stall()

    def resume(self, client: Client) -> None:
        """It has room again."""
        assert client.session.backpressure is not None
        client.session.backpressure.end_stall()

    def die(self, worker: int) -> None:
        """A worker dies with all of its clients, and another one takes its slot."""
        self.clients = [client for client in self.clients if client.worker != worker]
        self.asleep[worker] = False
        with self.memory.lock as words:
            OrderedLog(self.memory).reap(words, worker)
            stalls = StallTable(self.memory.stalls, self.limits.blocking_clients_max, None)
            stalls.reap(worker)
            self.book.reap(worker, time.monotonic_ns())
        self.memory.wake((1 << self.memory.workers) - 1)
        self._start(worker)

    def compact(self, *, finish: bool) -> None:
        """What the front does: begin a compaction where that may be, or end the one begun."""
        with self.memory.lock as words:
            if self.compaction is None:
                if all_have_read(self.memory, words):
                    self.compaction = Compaction(self.memory, words)
                return
        if finish:
            while self.compaction.step():
                pass
            with self.memory.lock as words:
                assert self.compaction.finish(words)
            self.compaction = None
            self.memory.wake((1 << len(self.sequencers)) - 1)

    # -- checks --------------------------------------------------------------------------------
    def check(self) -> None:
        """What holds between steps: a sleeper that is owed something was woken."""
        with self.memory.lock as words:
            self.logs[0].check_invariants(words)
        self.look()
        for worker, sequencer in enumerate(self.sequencers):
            behind = any(
                len(client.collector.received) < len(client.due)
                for client in self.of_worker(worker)
            )
            asleep = sequencer.is_caught_up
            assert not (asleep and behind) or self.woken[worker], "nobody woke it"
        for client in self.clients:
            stalled = [it for it in client.waits_for if it in self.clients and it.stalled]
            if client.waits_for and not stalled:
                assert client.woken, "nobody woke the worker of a client that was held"

    def look(self) -> None:
        """Note who was woken."""
        for worker in range(len(self.sequencers)):
            if was_woken(self.memory, worker):
                self.woken[worker] = self.told_of_room[worker] = True
                for client in self.of_worker(worker):
                    client.woken = True

    def settle(self) -> None:
        """All have room and walk, and held publishers continue: then all is delivered."""
        for client in self.clients:
            if client.stalled:
                self.resume(client)
        for _ in range(100):
            for worker in range(len(self.sequencers)):
                self.walk_on(worker, lambda: None)
            held = [client for client in self.clients if client.held]
            if not held and all(self.asleep):
                break
            for client in held:
                self.publish(client, [], lambda: None)
        for client in self.clients:
            assert client.collector.received == client.due
        with self.memory.lock as words:
            assert self.logs[0].statistics(words).used_bytes == 0
