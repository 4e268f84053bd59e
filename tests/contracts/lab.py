"""Whole workers in this process for the contracts: their clients, and what may happen to these.

A contract says what holds while the inside changes. How the front tells workers to move, inherit or
take over clients is inside, and only this module knows it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from sbus.broker.config.access_policy import encode_rule_set
from sbus.broker.ipc.queries import ActivityQuery, ActivityReply
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    ClientArrived,
    ClientDescribed,
    DescribeClient,
    HandOverClient,
    MoveDeclined,
    PrepareClient,
    RunQuery,
)
from sbus.limits import Limits
from sbus.protocol.admin_results import Activity
from tests.fuzz.one_process_bus import CREDENTIALS, OneProcessBus, one_process_bus
from tests.unit.broker.worker.test_snapshots import Succession

SMALL_BUFFER_BYTES = 4608
"""Of a socket that a few messages fill."""
LIMITS = Limits(
    log_bytes=8 * 1024 * 1024,
    table_bytes=1024 * 1024,
    packet_bytes_max=4096,
    socket_buffer_bytes=SMALL_BUFFER_BYTES,
)
UID = CREDENTIALS.uid
WORKERS = 2

_activity: msgspec.msgpack.Decoder[ActivityReply] = msgspec.msgpack.Decoder(ActivityReply)


class Client:
    """One client's end, and the worker that serves it."""

    def __init__(self, lab: "Lab", worker: int, uid: int, *, small: bool) -> None:
        self._lab = lab
        self.worker = worker
        self.credentials = msgspec.structs.replace(CREDENTIALS, uid=uid)
        buffer_bytes = SMALL_BUFFER_BYTES if small else None
        self._peer = lab.bus.connect(worker, self.credentials, buffer_bytes)
        self.number = self._peer.number
        self.read, self.close = self._peer.read, self._peer.close

    def send(self, *packets: bytes) -> None:
        """These wait until the workers have something to do."""
        for packet in packets:
            self._peer.send(packet)

    def say(self, *packets: bytes) -> list[bytes]:
        """Send each of these when the bus has done with the one before; returns all that came."""
        for packet in packets:
            self.send(packet)
            self._lab.settle()
        return self.read_all()

    def read_all(self) -> list[bytes]:
        """Read until the bus has nothing more."""
        self._lab.settle()
        found: list[bytes] = []
        while some := self.read():
            found += some
            self._lab.settle()
        return found

    def activity(self) -> Activity:
        """What an administrator is told."""
        self._lab.bus.tell(self.worker, RunQuery(1, ActivityQuery([self.number])))
        self._lab.settle()
        return _activity.decode(self._lab.bus.replies.pop().data)[self.number]


class Lab:
    """A bus and its clients."""

    def __init__(self, start: Callable[[], OneProcessBus]) -> None:
        self._start = start
        self.bus = start()
        self._clients: list[Client] = []

    def connect(self, worker: int = 0, uid: int = UID, *, small: bool = False) -> Client:
        client = Client(self, worker, uid, small=small)
        self._clients.append(client)
        self.settle()
        return client

    def end(self) -> None:
        """All clients leave, so that the bus has nothing more to tell them."""
        self.bus.stopped.clear()
        for client in self._clients:
            client.close()
        self.settle()

    def settle(self) -> None:
        """The workers do all that there is to do."""
        self.bus.settle()

    # -- what may happen -----------------------------------------------------------------------
    def move(self, client: Client) -> None:
        """The other worker serves this client from now on, unless messages wait for it."""
        bus, number, source, to = self.bus, client.number, client.worker, 1 - client.worker
        bus.tell(source, DescribeClient(number))
        self.settle()
        described = bus.other_events.pop()
        if described == MoveDeclined(number, "it waits, or messages wait for it"):
            return
        assert isinstance(described, ClientDescribed), described
        place = bus.account_of(client.credentials.uid).place
        adoption = AdoptClient(number, client.credentials, place, encode_rule_set(0), number)
        sock = bus.workers[source].sessions[number].sock
        bus.tell(to, PrepareClient(adoption, described.record), sock.fileno())
        self.settle()
        bus.tell(source, HandOverClient(number, to, described.record.revision))
        for _ in range(100):
            if ClientArrived(number) in bus.other_events:
                break
            self.settle()
        assert ClientArrived(number) in bus.other_events
        bus.other_events.clear()
        client.worker = to

    def die(self, worker: int, *gone: Client) -> None:
        """A worker dies, and a successor serves its clients but for these, which have closed."""
        self.bus.replace(worker, without=[client.number for client in gone])
        self.bus.stopped.discard(worker)
        self.settle()

    def resume(self) -> None:
        """All workers die before any has a successor."""
        left = [self.bus.reap(worker) for worker in range(WORKERS)]
        for worker, clients in enumerate(left):
            self.bus.succeed(worker, clients)
        self.settle()

    def upgrade(self) -> None:
        """Another bus takes the place of this one."""
        succession = Succession(self.bus, self._start())
        succession.complete()
        self.bus = succession.new
        self.settle()

    def happen(self, event: str, client: Client) -> None:
        """What has this name, to a client or to its worker."""
        events: dict[str, Callable[[], None]] = {
            "nothing": self.settle,
            "move": lambda: self.move(client),
            "die": lambda: self.die(client.worker),
            "resume": self.resume,
            "upgrade": self.upgrade,
        }
        events[event]()


@contextmanager
def lab(**limits: float) -> Iterator[Lab]:
    """A bus with these limits."""
    with ExitStack() as stack:
        chosen = msgspec.structs.replace(LIMITS, **limits)
        opened = Lab(lambda: stack.enter_context(one_process_bus("slash", chosen, WORKERS)))
        yield opened
        opened.end()
