"""The log that is kept for a successor of a worker that died with copied log blocks.

A worker copies little from the log, shares that it has walked it, and walks the copy. If it dies
then, the log has to keep these blocks for its successor from the moment of its reaping on.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from sbus.compiled import STEP
from sbus.limits import Limits
from sbus.shared import ordered_log
from sbus.shared.log_block import BLOCK, blocks_between
from sbus.shared.shared_memory import LOG_HEAD, MemoryLock
from tests.fuzz.one_process_bus import CREDENTIALS, OneProcessBus, Peer, one_process_bus
from tests.support.senders import without_sender

PUBLISHER, VICTIM, OTHER = range(3)
"""Workers."""
LOG_BYTES = 64 * 1024
BLOCK_BYTES = 1024
"""Of the log block of each message of the flood."""
LIMITS = Limits(log_bytes=LOG_BYTES, table_bytes=1024 * 1024, packet_bytes_max=2048)
MESSAGE = b"MSG victim\0of the publisher"
FORGED = b"MSG victim\0of uid 0"
_ENTRY = struct.Struct("<QIHH")


class Died(BaseException):
    """In place of the end of a process."""


def forged_block() -> bytes:
    """128 bytes that look like a log block for the victim's worker, published by uid 0."""
    length, place = 128, 1 << 62
    header = BLOCK.pack(1 << VICTIM, length, 1, 99, 0, 0, place, 0, 1, 0, 0)
    block = header + _ENTRY.pack(1 << VICTIM, len(FORGED), len(b"victim"), 0) + FORGED
    return block.ljust(length, b"\0")


def flood_message() -> bytes:
    """A message whose log block is forged ones from its 128th byte on."""
    head = b"MSG other\0"
    padding = bytes(128 - BLOCK.size - _ENTRY.size - len(head))
    return head + padding + forged_block() * (BLOCK_BYTES // 128 - 1)


class Scene:
    """A publisher, and a reader in each of two other workers."""

    def __init__(self, bus: OneProcessBus) -> None:
        self._bus = bus
        self.publisher = bus.connect(PUBLISHER)
        self.victim, self.other = bus.connect(VICTIM), bus.connect(OTHER)
        for reader, key in ((self.victim, b"victim"), (self.other, b"other")):
            for packet in (b"CMSG !/notices/on", b"CMSG sender/on", b"SUB " + key):
                reader.send(packet)
        self.flooded = 0
        self.received: list[bytes] = []

    def run(self, *workers: int) -> None:
        """Let these workers do all that they can."""
        while sum(self._bus.stepped[worker].is_awake() for worker in workers):
            pass

    def head(self) -> int:
        with self._bus.memory.lock as words:
            return int(words[LOG_HEAD])

    def flood(self) -> None:
        """Publish a message for the other reader, who reads it."""
        self.publisher.send(flood_message())
        self.flooded += 1
        self.run(PUBLISHER, OTHER)
        self.received += messages_of(self.other)

    def flood_to(self, position: int) -> None:
        while self.head() < position:
            self.flood()

    def die_before_the_walk(self) -> None:
        """The victim's worker copies what is destined to it, and dies before it delivers that."""
        walker = self._bus.stepped[VICTIM].parts.sequencer._walker
        with patch.object(walker, "walk_piece", side_effect=Died), pytest.raises(Died):
            self.run(VICTIM)


def messages_of(reader: Peer) -> list[bytes]:
    return [without_sender(packet)[1] for packet in reader.read()]


@pytest.fixture(params=sorted({"python", STEP}))
def scene(request: pytest.FixtureRequest) -> Iterator[tuple[OneProcessBus, Scene]]:
    with one_process_bus("slash", LIMITS, workers=3, step=request.param) as bus:
        scene = Scene(bus)
        bus.settle()
        yield bus, scene


def test_others_append_nothing_over_what_is_kept(scene: tuple[OneProcessBus, Scene]) -> None:
    """However much room the log has had before, and for as long as the successor takes."""
    bus, clients = scene
    clients.flood_to(LOG_BYTES)
    clients.publisher.send(MESSAGE)  # so that blocks of the next round lie elsewhere
    bus.settle()
    assert messages_of(clients.victim) == [MESSAGE]
    clients.flood_to(LOG_BYTES * 3 // 2)
    clients.publisher.send(MESSAGE)
    clients.run(PUBLISHER)
    place = clients.head()
    clients.die_before_the_walk()
    clients.flood_to(place + LOG_BYTES * 5 // 8)
    left = bus.reap(VICTIM)
    for _ in range(LOG_BYTES // BLOCK_BYTES):
        clients.flood()
    end = clients.head()
    bus.succeed(VICTIM, left)
    bus.settle()
    ((sent_by, message),) = map(without_sender, clients.victim.read())
    assert message == MESSAGE
    assert sent_by is not None
    own = CREDENTIALS
    assert sent_by[1:] == (clients.publisher.number, own.gid, own.uid, own.pid)
    clients.received += messages_of(clients.other)
    assert clients.received == [flood_message()] * clients.flooded
    assert end <= place + LOG_BYTES


def test_a_successor_holds_the_lock_for_no_look_at_a_log_block(
    scene: tuple[OneProcessBus, Scene],
) -> None:
    """However many blocks the log has kept for it: it counts them before or behind."""
    bus, clients = scene
    for number in range(100):
        clients.publisher.send(b"MSG victim\0%d" % number)
        clients.run(PUBLISHER)
    lock, looks = bus.memory.lock, {True: 0, False: 0}

    def counted(*arguments: Any) -> Iterator[tuple[int, int, bytes]]:
        for block in blocks_between(*arguments):
            looks[is_held(lock)] += 1
            yield block

    with patch.object(ordered_log, "blocks_between", counted):
        bus.replace(VICTIM)
    assert looks == {True: 0, False: 100}
    bus.settle()
    assert messages_of(clients.victim) == [b"MSG victim\0%d" % number for number in range(100)]


def is_held(lock: MemoryLock) -> bool:
    """Whether this process is in a critical section: another description cannot get the lock."""
    other = os.open(f"/proc/self/fd/{lock.fd}", os.O_RDWR)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(other)
    return False
