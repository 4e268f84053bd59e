"""Several sequencers in one process, whose clients only keep what they are given.

Nothing here decides what clients have to receive; that is for the tests to say.
"""

import socket
from collections import Counter
from typing import cast

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.config.settings import BusSettings
from sbus.broker.delivery.backpressure import Backpressure, BackpressureRule
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.ipc.worker_link import WorkerLink
from sbus.broker.ipc.worker_protocol import WorkerEvent
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.monitor import MessageMonitor
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.broker.worker.router import Router
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Connection, Session
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.limits import Limits
from sbus.protocol.keys import SLASH
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import Account, Accounts
from sbus.shared.compaction import Compaction
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.shared.subscription_table import all_have_read
from sbus.shared.worker_statistics import WorkerStatistics
from sbus.unix.credentials import Credentials
from tests.support.events import logging_to
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


NO_RULES = AccessProfile(publish=0, subscribe=0, may_block_others=False)


class Unheard:
    """Takes what a client's back-pressure tells."""

    def on_stall(self, is_stalled: bool) -> None: ...

    def on_held_time_spent(self) -> None: ...


class Client:
    """A client: its session, and what it has and was given."""

    def __init__(
        self, number: int, worker: int, account: Account, uid: int, sock: socket.socket
    ) -> None:
        self.worker = worker
        own = Credentials(gid=1, uid=uid + SUBORDINATE * (number % 3 == 0), pid=1)
        self.collector = Collector()
        connection = Connection(number, own, account, sock, spare_slot())
        self.session = Session(connection, cast(Outbox, self.collector), NO_RULES, LIMITS)
        self.subscriptions: Counter[bytes] = Counter()
        self.pending: list[tuple[bytes, bytes]] = []
        """Packets and keys that were read and have no place yet."""


class Bus:
    """The workers of one bus."""

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
        self.memory = SharedMemory(workers, limits)
        self.memory.lock.open()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link = RecordingLink()
        self.routers: list[Router] = []
        self.sequencers: list[Sequencer] = []
        self.subscriptions: list[Subscriptions] = []
        self.stalls: list[StallTable] = []
        self.accounts: list[Accounts] = []
        self.book = AccountBook(self.memory.accounts, workers, limits)
        self.clients: list[Client] = []
        self.numbers = 0
        self.compaction: Compaction | None = None
        self._clients_per_worker = clients_per_worker
        for worker in range(workers):
            self._start(worker)

    def close(self) -> None:
        self.sock.close()
        self.memory.close()

    def _start(self, worker: int) -> None:
        settings = BusSettings(workers=self.memory.workers, limits=self.limits)
        link = cast(WorkerLink, self.link)
        context = WorkerContext(worker, self.memory, settings, logging_to([]), link)
        router = Router(worker, SLASH, self.limits)
        sequencer = Sequencer(context, router, MessageMonitor(worker))
        subscriptions = Subscriptions(context, sequencer, router)
        subscriptions.start()
        if self._have_published:
            assert sequencer.read_table()
        self.routers.append(router)
        self.sequencers.append(sequencer)
        self.subscriptions.append(subscriptions)
        self.stalls.append(context.stalls)
        self.accounts.append(context.accounts)
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
    def publish(self, client: Client, keys: list[bytes]) -> None:
        """Publish a batch for which there is room."""
        session, router = client.session, self.routers[client.worker]
        batch = PublishBatch(session)
        for key in keys:
            batch.add(b"MSG %b\0" % key, key, router.look_up(key))
        assert self.sequencers[client.worker].publish(batch) is None

    def subscribe(self, client: Client, pattern: bytes) -> bool:
        done = self.subscriptions[client.worker].subscribe(client.session, pattern)
        if done:
            client.subscriptions[pattern] += 1
        return done

    def unsubscribe(self, client: Client, pattern: bytes) -> bool:
        done = self.subscriptions[client.worker].unsubscribe(client.session, pattern)
        if done:
            client.subscriptions -= Counter([pattern])
        return done

    def walk_on(self, worker: int) -> None:
        """Walk everything that is destined to a worker."""
        if was_woken(self.memory, worker):
            self.sequencers[worker].look_again()
        self.sequencers[worker].walk_on(COST_OF_EVERYTHING)

    def leave(self, client: Client) -> None:
        """A client goes; another one comes to the same worker."""
        self.clients.remove(client)
        session, worker = client.session, client.worker
        self.subscriptions[worker].remove_client(session)
        if session.backpressure is not None:
            session.backpressure.end_stall()
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
            self.memory.wake((1 << self.memory.workers) - 1)
