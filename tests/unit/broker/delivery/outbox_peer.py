"""A client's end of a real socket, and the outbox that serves it."""

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.delivery.backpressure import Backpressure, BackpressureRule
from sbus.broker.delivery.origin import Origin
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.outbox_ledger import OutboxStatistics
from sbus.broker.delivery.send_times import SendTimes, TimedSocket
from sbus.broker.worker.poller import WRITABLE
from sbus.limits import Limits
from sbus.protocol.controls import FloodControl
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.shared.worker_statistics import WorkerStatistics
from sbus.unix.credentials import Credentials
from tests.unit.shared.memories import open_account

UNITS_PER_TURN = 16
UID = 1000
"""The user of all peers."""
NO_RULES = AccessProfile(publish=0, subscribe=0, may_block_others=False)
_QUIET = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
"""What a worker's poller reports of a client whose room it does not watch."""
SMALL_BUFFER_BYTES = 4608
"""About the least SO_SNDBUF there is: a few small packets fit."""


def small_pair() -> tuple[socket.socket, socket.socket]:
    """A connection of which the first end has a small buffer."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
    return ours, theirs


class Peer:
    """A client's end, and the outbox that serves it."""

    def __init__(
        self,
        limits: Limits,
        flood_control: FloodControl = FloodControl(),  # noqa: B008 (immutable)
    ) -> None:
        ours, self.sock = small_pair()
        self.flood_control = flood_control
        self._epoll = select.epoll()
        self._epoll.register(ours, _QUIET)
        self.serve(ours, limits)

    def serve(self, ours: socket.socket, limits: Limits) -> None:
        self.served = ours
        ours.setblocking(False)
        self.sock.setblocking(False)
        self.watches_room = False
        self.larger_buffer_bytes = 0
        """SO_SNDBUF that the socket gets when it is full, once."""
        self.retries = 0
        """How often it is to be tried again because the kernel has no memory."""
        self.waits_for_time = 0
        self.replied = 0
        self.faults = 0
        self.room_reports = 0
        self.gives_turns = True
        self.quota_reports = 0
        self.spent_reports = 0
        self.account = open_account(limits)
        self.statistics = WorkerStatistics()

        self.origin = Origin()
        times = SendTimes(limits.users_max, self.statistics)
        timed = TimedSocket(ours, self.account.place, times)
        self.outbox = Outbox(timed, self.flood_control, limits, self.account, self.statistics, self)
        self.outbox.use_origin(self.origin)

    def let_block(self, memory: SharedMemory, limits: Limits) -> None:
        """Give it a place among the stalls: from now on `block` holds its own user's publishers."""
        self.stalls = stalls = StallTable(memory.stalls, limits.blocking_clients_max, 0)
        place = stalls.take_place()
        assert place is not None
        self.backpressure = Backpressure(
            BackpressureRule(1, place, self.account.place, Credentials(1, UID, 1), NO_RULES),
            self.account,
            memory,
            stalls,
            self.statistics,
            self,
        )
        self.outbox.enable_backpressure(self.backpressure)

    # -- what the outbox and its back-pressure tell --------------------------------------------
    def watch_room(self, is_wanted: bool) -> None:
        assert is_wanted != self.watches_room, "a call that changes nothing"
        self.watches_room = is_wanted
        self._epoll.modify(self.served, _QUIET | select.EPOLLOUT if is_wanted else _QUIET)

    def enlarge_buffer(self) -> bool:
        if self.larger_buffer_bytes:
            size_bytes, self.larger_buffer_bytes = self.larger_buffer_bytes, 0
            self.served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size_bytes)
            return True
        return False

    def retry_later(self) -> None:
        self.retries += 1

    def wait_for_time(self) -> None:
        self.waits_for_time += 1

    def on_control_sent(self) -> None:
        self.replied += 1

    def on_fault(self) -> None:
        self.faults += 1

    def on_held_time_spent(self) -> None:
        self.spent_reports += 1

    def on_quota_reached(self) -> None:
        self.quota_reports += 1

    def on_stall(self, is_stalled: bool) -> None: ...

    # -- what a test does ----------------------------------------------------------------------
    def deliver(self, *packets: bytes, is_own_users: bool = True) -> None:
        """Deliver messages that a publisher of the client's user has sent, or one of another's."""
        account = self.account.place + (0 if is_own_users else 1)
        for packet in packets:
            self.outbox.deliver(packet, account)

    def read(self) -> list[bytes]:
        """All that has arrived."""
        packets = []
        while True:
            try:
                packets.append(self.sock.recv(10_000))
            except BlockingIOError:
                return packets
            assert packets[-1], "the connection ended"

    def read_some(self, packets_max: int) -> list[bytes]:
        """The next that have arrived."""
        packets: list[bytes] = []
        with suppress(BlockingIOError):
            while len(packets) < packets_max:
                packets.append(self.sock.recv(10_000))
        return packets

    def settle(self) -> None:
        """Do what a worker does about this socket, until nothing more is reported."""
        while events := self._epoll.poll(0):
            if events[0][1] & WRITABLE:
                self.room_reports += 1
                self._give_turns()

    def retry(self) -> None:
        """The kernel has had a moment to find memory."""
        self.retries -= 1
        self._give_turns()

    def _give_turns(self) -> None:
        """Turns follow each other without a break, if there are any."""
        while self.gives_turns and self.outbox.send_backlog(UNITS_PER_TURN)[1]:
            pass

    def read_all(self) -> list[bytes]:
        """Read until the outbox has nothing more to send."""
        packets = self.read()
        self.settle()
        while arrived := self.read():
            packets += arrived
            self.settle()
        assert self.outbox.is_flowing or self.outbox.is_closed, "something waits for ever"
        return packets

    def fill(self) -> int:
        """Deliver until the socket takes no more; how many it took."""
        count = 0
        while self.outbox.is_flowing:
            self.deliver(b"fill")
            count += 1
        return count - 1

    def fill_exactly(self) -> None:
        """Deliver as much as a socket like this takes, which is `taken`, and no more."""
        self.taken = 0
        ours, theirs = small_pair()
        with ours, theirs, suppress(BlockingIOError):
            while ours.send(b"fill", socket.MSG_DONTWAIT):
                self.taken += 1
        for _ in range(self.taken):
            self.deliver(b"fill")
        assert self.outbox.is_flowing

    def close(self) -> None:
        self.outbox.close()
        self._epoll.close()
        self.served.close()
        self.sock.close()


@contextmanager
def open_peers() -> Iterator[Callable[..., Peer]]:
    """A function that makes peers, all of which are closed in the end."""
    opened: list[Peer] = []

    def make(limits: Limits, **flood_control: FloodControl) -> Peer:
        opened.append(Peer(limits, **flood_control))
        return opened[-1]

    yield make
    for peer in opened:
        peer.close()


def limits(messages: int = 1000, size: int = 1_000_000) -> Limits:
    return Limits(backlog_messages_max=messages, backlog_bytes_max=size)


def total(statistics: OutboxStatistics) -> int:
    dropped = statistics.dropped + statistics.replaced + statistics.undelivered
    return statistics.delivered + dropped + statistics.backlog


class Moody(socket.socket):
    """A socket whose kernel is out of memory when told to be."""

    failures: list[int]

    def send(self, data: bytes, flags: int = 0) -> int:  # type: ignore[override]
        if self.failures:
            raise OSError(self.failures.pop(), "out of something")
        return super().send(data, flags)


def make_moody(peer: Peer, *failures: int) -> Moody:
    sock = Moody(fileno=peer.served.detach())
    sock.failures = list(failures)
    peer.serve(sock, limits())
    return sock
