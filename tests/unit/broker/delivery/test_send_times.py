"""Sends that take too long are timed, and then charged to the recipient's user."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from unittest.mock import patch

import pytest

from sbus.broker.delivery.send_times import TIME_SHARE, SendTimes, SendTimeSpent, TimedSocket
from sbus.shared.worker_statistics import SLOW_SENDS, WorkerStatistics

MS = 1_000_000
BURST_NS = 10 * MS
START_NS = 5_000_000_000_000
PLACE, OTHER = 1, 2


class Kernel:
    """A socket and the clocks: each send takes as long as was set."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        self.cpu_ns = 0
        self.takes_ns = self.waits_ns = 0
        self.sent = 0
        self.error: OSError | None = None

    def fileno(self) -> int:
        return 7

    def send(self, packet: bytes, _flags: int) -> int:
        self.cpu_ns += self.takes_ns
        self.now_ns += self.takes_ns + self.waits_ns
        if self.error is not None:
            raise self.error
        self.sent += 1
        return len(packet)


class Scene:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.statistics = WorkerStatistics()
        self.times = SendTimes(3, self.statistics)

    def socket_of(self, place: int) -> TimedSocket:
        sock: socket.socket = self.kernel  # type: ignore[assignment]
        return TimedSocket(sock, place, self.times)

    @property
    def slow_sends(self) -> int:
        return self.statistics.counts[SLOW_SENDS]

    def is_timed(self, place: int) -> bool:
        return self.times.timed_until_ns[place] > 0


@pytest.fixture
def scene() -> Iterator[Scene]:
    kernel = Kernel()
    with (
        patch.object(time, "monotonic_ns", lambda: kernel.now_ns),
        patch.object(time, "thread_time_ns", lambda: kernel.cpu_ns),
    ):
        yield Scene(kernel)


def test_ordinary_sends_are_not_timed(scene: Scene) -> None:
    sock = scene.socket_of(PLACE)
    scene.kernel.takes_ns = 50_000
    assert [sock.send(b"x" * 9) for _ in range(1_000)] == [9] * 1_000
    assert not scene.is_timed(PLACE)
    assert sock.fileno() == 7


def test_a_large_packet_may_take_longer(scene: Scene) -> None:
    sock = scene.socket_of(PLACE)
    scene.kernel.takes_ns = 800_000
    sock.send(bytes(400_000))
    assert not scene.is_timed(PLACE)


def test_the_first_slow_send_is_not_charged_and_the_next_are(scene: Scene) -> None:
    sock, other = scene.socket_of(PLACE), scene.socket_of(OTHER)
    scene.kernel.takes_ns = 20 * MS
    sock.send(b"x")
    assert scene.is_timed(PLACE)
    assert scene.slow_sends == 0
    sock.send(b"x")
    assert scene.slow_sends == 1
    with pytest.raises(SendTimeSpent):
        sock.send(b"x")
    scene.kernel.takes_ns = 0
    with pytest.raises(SendTimeSpent):
        scene.socket_of(PLACE).send(b"x")
    other.send(b"x")
    assert not scene.is_timed(OTHER)
    assert scene.kernel.sent == 3


def test_a_process_that_waited_for_its_processor_is_innocent(scene: Scene) -> None:
    sock = scene.socket_of(PLACE)
    scene.kernel.waits_ns = 50 * MS
    for _ in range(100):
        sock.send(b"x")
    assert scene.kernel.sent == 100
    assert not scene.is_timed(PLACE)


def test_sends_are_timed_for_a_while(scene: Scene) -> None:
    sock, kernel = scene.socket_of(PLACE), scene.kernel
    kernel.takes_ns = MS
    sock.send(b"x")
    kernel.takes_ns, kernel.waits_ns = 0, MS
    while kernel.now_ns <= START_NS + MS + TIME_SHARE * MS:
        assert scene.is_timed(PLACE)
        sock.send(b"x")
    sock.send(b"x")
    assert not scene.is_timed(PLACE)
    assert scene.slow_sends == 0


def test_what_came_before_a_send_is_not_taken_for_it(scene: Scene) -> None:
    sock, kernel = scene.socket_of(PLACE), scene.kernel
    sock.send(b"x")
    kernel.now_ns += MS // 2
    kernel.cpu_ns += MS // 2
    kernel.waits_ns = MS
    sock.send(b"x")
    assert not scene.is_timed(PLACE)


def test_sends_go_on_when_there_is_time(scene: Scene) -> None:
    sock = scene.socket_of(PLACE)
    scene.kernel.takes_ns = 20 * MS
    sock.send(b"x")
    sock.send(b"x")
    due_ns = scene.times.due_ns(PLACE)
    assert due_ns - scene.kernel.now_ns <= TIME_SHARE * 20 * MS - TIME_SHARE * BURST_NS
    scene.kernel.now_ns = due_ns - 1
    with pytest.raises(SendTimeSpent):
        sock.send(b"x")
    scene.kernel.now_ns = due_ns
    sock.send(b"x")
    assert scene.slow_sends == 2


def test_time_is_charged_for_a_send_that_fails(scene: Scene) -> None:
    sock = scene.socket_of(PLACE)
    scene.times.timed_until_ns[PLACE] = START_NS + MS
    scene.kernel.takes_ns, scene.kernel.error = 30 * MS, BlockingIOError()
    with pytest.raises(BlockingIOError):
        sock.send(b"x")
    assert scene.times.due_ns(PLACE) > scene.kernel.now_ns


@pytest.mark.parametrize("slow_of", [1, 2, 10, 100])
@pytest.mark.parametrize("takes_ns", [50_000, 110_000, MS, 278 * MS])
def test_slow_sends_take_a_small_share_of_the_time(
    scene: Scene, slow_of: int, takes_ns: int
) -> None:
    """One of so many sends is slow, by choice of the client."""
    sock, kernel = scene.socket_of(PLACE), scene.kernel
    scene.times.timed_until_ns[PLACE] = START_NS + MS
    spent_ns, seconds = 0, 10
    number = 0
    while kernel.now_ns < START_NS + seconds * 1_000 * MS:
        number += 1
        kernel.takes_ns = takes_ns if number % slow_of == 0 else 2_000
        before_ns = kernel.cpu_ns
        with suppress(SendTimeSpent):
            sock.send(b"x")
        if number % slow_of == 0:
            spent_ns += kernel.cpu_ns - before_ns
        kernel.now_ns += 100_000
    ordinary_ns = 100_000 if takes_ns <= 100_000 else 16_000
    excess_ns = spent_ns * (takes_ns - ordinary_ns) / takes_ns
    share = 2 / TIME_SHARE  # charged, and as much that was not because it was the first
    assert excess_ns <= share * seconds * 1_000 * MS + BURST_NS + 2 * takes_ns


def test_looks_that_take_long_share_the_time_of_slow_sends(scene: Scene) -> None:
    kernel, seconds = scene.kernel, 10

    def look(takes_ns: int, place: int) -> bool:
        kernel.takes_ns = takes_ns
        with suppress(SendTimeSpent):
            return bool(scene.times.look(place, lambda: kernel.send(b"x", 0)))
        return False

    assert all(look(250_000, OTHER) for _ in range(1_000)), "ordinary ones"
    until_ns, looks = kernel.now_ns + seconds * 1_000 * MS, 0
    while kernel.now_ns < until_ns:
        looks += look(25 * MS, PLACE)
        kernel.now_ns += MS
    assert looks * 25 * MS <= BURST_NS + seconds * 1_000 * MS / TIME_SHARE + 25 * MS
    assert looks > 10
    assert scene.slow_sends == looks
    assert look(25 * MS, OTHER)
