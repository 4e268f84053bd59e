"""What a victim notices: how long its messages and its connections take, and what is lost.

Both go on at a fixed pace whatever happened to the one before, so that a bus that stands still for
a second delays all that was due in this second. A visit does not wait for the one before it.
"""

import contextlib
import select
import socket
import time
from array import array
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor

from sbus.bench.attacks.connections import Connections
from sbus.bench.figures import percentile

MESSAGE_PERIOD_NS = 2_000_000
CONNECT_PERIOD_NS = 50_000_000
VISITS_AT_ONCE_MAX = 256
"""More than begin in the time after which a visit fails."""
LATE_SECONDS_MAX = 20.0
"""What has not arrived so long after the end is lost."""
KEY = b"victim"
PACKET_BYTES_MAX = 256
PERCENTILES = {"p50_us": 50.0, "p99_us": 99.0, "max_us": 100.0}


def summary(times_ns: "array[int]") -> dict[str, int]:
    """Percentiles in µs; none of no samples."""
    if not times_ns:
        return {}
    return {name: percentile(times_ns, rank) // 1_000 for name, rank in PERCENTILES.items()}


class MessageVictim:
    """Clients that take turns at publishing. Each of them receives all messages, which carry their
    number and the time when they were made."""

    def __init__(self, address: str, clients: int) -> None:
        bus = Connections(address)
        self._socks = [bus.admitted([b"SUB " + KEY]) for _ in range(clients)]
        self._made = 0
        self._begin()

    def _begin(self) -> None:
        self._first = self._made
        self._unsent: deque[bytes] = deque()
        self._next = [[self._first] * len(self._socks) for _ in self._socks]
        """What follows in order, by receiver and publisher."""
        self._times_ns = array("Q")
        self._counts = Counter(disordered=0, disconnected=0)

    def run(self, seconds: float) -> dict[str, int]:
        self._begin()
        try:
            self._exchange(time.monotonic_ns() + round(seconds * 1e9))
        except ConnectionError:
            self._counts["disconnected"] += 1
        figures = {"messages": self._made - self._first, "lost": self._missing(), **self._counts}
        return figures | summary(self._times_ns)

    def _exchange(self, end_ns: int) -> None:
        due = time.monotonic_ns()
        while due < end_ns:
            self._serve_until(due)
            self._make()
            due += MESSAGE_PERIOD_NS
        while self._missing() and due < end_ns + LATE_SECONDS_MAX * 1e9:
            self._serve_until(due)
            due += MESSAGE_PERIOD_NS

    def _missing(self) -> int:
        return (self._made - self._first) * len(self._socks) - len(self._times_ns)

    def _make(self) -> None:
        self._unsent.append(b"MSG %b\0%d %d" % (KEY, self._made, time.monotonic_ns()))
        self._made += 1
        self._send()

    def _send(self) -> None:
        """Never waits: a bus that does not read must not delay the next message."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                number = self._made - len(self._unsent)
                sock = self._socks[number % len(self._socks)]
                sock.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent.popleft()

    def _serve_until(self, due_ns: int) -> None:
        while True:
            self._send()
            left = max(0, due_ns - time.monotonic_ns()) / 1e9
            readable, _, _ = select.select(self._socks, [], [], left)
            if not readable:
                return
            for sock in readable:
                self._receive(sock)

    def _receive(self, sock: socket.socket) -> None:
        expected = self._next[self._socks.index(sock)]
        with contextlib.suppress(BlockingIOError):
            while packet := sock.recv(PACKET_BYTES_MAX, socket.MSG_DONTWAIT):
                if packet.startswith(b"MSG "):
                    self._take(expected, packet, time.monotonic_ns())
            raise ConnectionResetError("the bus disconnected the victim")

    def _take(self, expected: list[int], packet: bytes, now_ns: int) -> None:
        number, made_ns = map(int, packet.partition(b"\0")[2].split())
        publisher = number % len(expected)
        if number < self._first:
            return  # it was lost, being late
        if number < expected[publisher]:
            self._counts["disordered"] += 1
            return
        expected[publisher] = number + 1
        self._times_ns.append(now_ns - made_ns)


class ConnectVictim:
    """Connects, waits for the first reply and leaves."""

    def __init__(self, address: str) -> None:
        self._address = address

    def run(self, seconds: float) -> dict[str, int]:
        due = time.monotonic_ns()
        end = due + round(seconds * 1e9)
        visits = []
        with ThreadPoolExecutor(VISITS_AT_ONCE_MAX) as visitors:
            while due < end:
                time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
                visits.append(visitors.submit(self._visit, due))
                due += CONNECT_PERIOD_NS
        results = [visit.result() for visit in visits]
        times_ns = array("Q", (it for it in results if it is not None))
        failed = len(results) - len(times_ns)
        return {"connections": len(times_ns), "failed": failed} | summary(times_ns)

    def _visit(self, due_ns: int) -> int | None:
        """How long a visit took that was to begin then; None if it failed."""
        bus = Connections(self._address)
        try:
            bus.close(bus.admitted())
        except (ConnectionError, BlockingIOError):
            bus.close_all()
            return None
        return time.monotonic_ns() - due_ns
