"""The stream writer: it never waits, and everything is sent or counted, in order."""

import random
import socket
from collections.abc import AsyncIterator
from itertools import pairwise

import msgspec
import pytest
import trio
import trio.testing

from sbus.broker.events.stream_writer import StreamWriter
from sbus.protocol.admin_streams import Missed, Part, Recipients, StreamPacket

BUFFER_BYTES = 20_000


def packet_of(source: int) -> Recipients:
    counts = [0] * 100
    return Recipients(source=source, worker=0, block=0, entries=counts, recipients=counts)


class Scene:
    def __init__(self, nursery: trio.Nursery) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self.theirs.setblocking(False)
        self.gone = 0
        self.missing = 0
        self.writer = StreamWriter(
            ours.detach(), nursery.start_soon, self._on_gone, self._on_missing
        )

    def _on_gone(self) -> None:
        self.gone += 1
        self.writer.close()

    def _on_missing(self) -> None:
        self.missing += 1

    def send(self, number: int, parts: int = 0) -> None:
        rest = [Part(source=number, payload=bytes(4000)) for _ in range(parts)]
        self.writer.send(packet_of(number), 1, rest)

    async def read(self, packets_max: int = 1_000_000) -> list[StreamPacket]:
        """What is there, and what comes when there is room."""
        found: list[StreamPacket] = []
        while len(found) < packets_max:
            try:
                data = self.theirs.recv(100_000)
            except BlockingIOError:
                await trio.testing.wait_all_tasks_blocked(0.005)
                try:
                    data = self.theirs.recv(100_000)
                except BlockingIOError:
                    return found
            found.append(msgspec.json.decode(data, type=StreamPacket))
        return found


@pytest.fixture
async def scene(nursery: trio.Nursery) -> AsyncIterator[Scene]:
    made = Scene(nursery)
    yield made
    made.writer.close()
    made.theirs.close()


async def test_after_a_packet_without_room_none_is_tried_until_the_socket_is_writable(
    scene: Scene,
) -> None:
    """Encoding them would take time for a watcher that does not read."""
    while scene.writer.has_room:
        scene.send(1)
    assert scene.writer.missed == 1
    while scene.theirs.recv(100_000, socket.MSG_PEEK | socket.MSG_DONTWAIT):
        scene.theirs.recv(100_000)
        scene.send(2)
        assert not scene.writer.has_room
        if scene.writer.missed == 5:
            break
    *sent, told = await scene.read()
    assert all(packet.source == 1 for packet in sent)
    assert told == Missed(source=scene.writer.source, missed=5)
    assert scene.missing == 1
    assert scene.writer.has_room


async def test_there_is_room_again_though_nothing_was_missed(scene: Scene) -> None:
    while scene.writer.has_room:
        scene.writer.send(packet_of(1), 0)
    await scene.read()
    assert scene.writer.has_room
    assert scene.writer.missed == 0


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_is_lost_without_being_counted(scene: Scene, seed: int) -> None:
    rng = random.Random(seed)
    given = 0
    found: list[StreamPacket] = []
    for _ in range(100):
        for _ in range(rng.randrange(20)):
            scene.send(given, rng.choice([0, 0, 0, 3]))
            given += 1
        found += await scene.read(rng.randrange(40))
    found += await scene.read()
    sent = [packet.source for packet in found if isinstance(packet, Recipients)]
    assert sent == sorted(set(sent))
    assert len(sent) + scene.writer.missed == given
    assert scene.writer.missed
    told = [packet.missed for packet in found if isinstance(packet, Missed)]
    assert told == sorted(told)
    assert told[-1] == scene.writer.missed
    for before, packet in pairwise(found):
        assert not isinstance(packet, Part) or packet.source == before.source


async def test_a_watcher_that_goes_while_something_waits_is_noticed(scene: Scene) -> None:
    for number in range(200):
        scene.send(number, parts=1)
    await trio.testing.wait_all_tasks_blocked()
    assert scene.gone == 0
    scene.theirs.close()
    with trio.fail_after(60):
        while not scene.gone:
            await trio.testing.wait_all_tasks_blocked(0.005)
    assert scene.gone == 1
