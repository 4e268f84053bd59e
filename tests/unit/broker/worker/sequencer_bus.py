"""Workers of one bus whose steps a test makes one by one: nothing is done that it does not ask for,
once all clients are connected."""

from collections import Counter
from typing import cast

from sbus.broker.ipc.worker_link import WorkerLink
from sbus.broker.ipc.worker_protocol import WorkerEvent
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.limits import Limits
from sbus.shared.compaction import Compaction
from sbus.shared.shared_memory import LOG_HEAD
from sbus.shared.subscription_table import all_have_read
from sbus.unix.credentials import Credentials
from tests.fuzz.one_process_bus import OneProcessBus
from tests.unit.shared.memories import was_woken

LIMITS = Limits(
    log_bytes=1536,
    table_bytes=64 * 1024,
    route_cache_bytes_max=4096,
    packet_bytes_max=400,
    users_max=2,
    user_held_seconds_max=1e9,
    blocking_clients_max=8,
)
UIDS = (1000, 1001)
COST_OF_EVERYTHING = 1_000_000
"""More than it costs to walk the whole log."""


class RecordingLink:
    """A link to a front that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[WorkerEvent] = []

    def send(self, event: WorkerEvent) -> None:
        self.sent.append(event)


class Client:
    """A client: both ends of its connection, and what it has and was given."""

    def __init__(self, bus: OneProcessBus, worker: int, uid: int) -> None:
        self.worker = worker
        self._peer = bus.connect(worker, Credentials(gid=1, uid=uid, pid=1))
        bus.settle()
        self.session = bus.workers[worker].sessions[self._peer.number]
        self.subscriptions: Counter[bytes] = Counter()
        self.pending: list[tuple[bytes, bytes]] = []
        """Packets and keys that were read and have no place yet."""
        self._received: list[bytes] = []

    @property
    def received(self) -> list[bytes]:
        self._received += self._peer.read()
        return self._received


class Bus:
    """The workers of one bus, and so many clients of each."""

    def __init__(
        self,
        workers: int,
        clients_per_worker: int,
        limits: Limits = LIMITS,
        *,
        have_published: bool = False,
    ) -> None:
        """`have_published`: every worker reads the subscription table from the start on."""
        self._bus = OneProcessBus("slash", limits, workers)
        self._bus.start()
        self.memory = self._bus.memory
        parts = self._bus.workers
        self.routers = [it.router for it in parts]
        self.sequencers = [it.sequencer for it in parts]
        self.subscriptions = [it.subscriptions for it in parts]
        self.stalls = [it.context.stalls for it in parts]
        if have_published:
            assert all(it.read_table() for it in self.sequencers)
        numbers = range(workers * clients_per_worker)
        self.clients = [
            Client(self._bus, at // clients_per_worker, UIDS[1 - at % 2]) for at in numbers
        ]
        self.compaction: Compaction | None = None
        self.link = RecordingLink()
        for each in parts:
            each.context.link = cast(WorkerLink, self.link)

    def close(self) -> None:
        self._bus.close()

    def of_worker(self, worker: int) -> list[Client]:
        return [client for client in self.clients if client.worker == worker]

    def log_head(self) -> int:
        with self.memory.lock as words:
            return int(words[LOG_HEAD])

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
        """A client goes; background steps take back what is left of it."""
        self._bus.workers[client.worker].sessions.close(client.session, "it left")

    def block(self, client: Client) -> None:
        """A client chooses to hold publishers back; background steps do it for its patterns."""
        assert self._bus.workers[client.worker].sessions.enable_backpressure(client.session)

    def stall(self, client: Client) -> None:
        """A client that blocks has no room from now on."""
        assert client.session.backpressure is not None
        client.session.backpressure.stall()

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
