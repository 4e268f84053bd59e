"""A client that chose `block` and does not read, in numbers that no transcript has: nothing is
lost, and all messages arrive in one order, on whatever workers the clients are (PROTOCOL, "A slow
client").

Who is held, and until when: `tests/protocol/11-holding-publishers-back.t`. That publishers are
released in any case: `test_block_budget`.
"""

import signal
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest

from tests.support.block_scene import HARD, OPTIONS, SIZE, SOFT, Scenes, receive_all, scene_on
from tests.support.bus import running_bus
from tests.support.flood import give_turns, message, send_until_held
from tests.support.raw_client import RawClient
from tests.support.threads import Task


def test_one_matching_pattern_of_thousands_is_enough(scenes: Scenes) -> None:
    with scenes.scene(2, 1) as scene:
        for number in range(3_000):
            scene.slow.sub(b"many/%d" % number)
        scene.slow.control(SOFT[0])
        scene.slow.whoami()
        sent = scene.hold(key=b"many/2999")
        scene.assert_flows(scene.bystander, b"many/3000")
        scene.assert_flows(scene.bystander, b"many")
        scene.assert_still_held()
        receive_all(scene.slow, sent, b"many/2999")
        scene.publisher.whoami()
        assert scene.slow.sync() == []


def test_a_bus_ends_though_publishers_are_held(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, *OPTIONS, workers=2) as bus,
        scene_on(bus, 2, 1) as scene,
    ):
        scene.subscribe(scene.slow, *SOFT)
        scene.hold()
        scene.hold(scene.other_publisher)
        bus.process.send_signal(signal.SIGTERM)
        assert bus.process.wait(60) == 0


EACH = 1_200
READ_AT_ONCE = 300


def of(name: int, begin: int = 0) -> Iterator[bytes]:
    return (message(b"%d %d" % (name, number), SIZE) for number in count(begin))


def publish(publisher: RawClient, packets: Iterator[bytes]) -> None:
    for packet in packets:
        publisher.send(packet)
    publisher.whoami()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_thousands_of_messages_through_many_stalls_in_one_order(
    scenes: Scenes, workers: int
) -> None:
    """Two readers, one reading in spurts, and publishers on all workers."""
    with scenes.scene(workers, 0) as scene:
        scene.subscribe(scene.slow, *SOFT)
        scene.subscribe(scene.also_slow, *HARD)
        publishers = scene.publishers
        sent = [
            send_until_held(publisher, of(name), scene.witnesses)
            for name, publisher in enumerate(publishers)
        ]
        assert max(sent) < EACH, "they would not be held back again"
        total = EACH * len(publishers)

        also_received: list[bytes] = []

        def read_along() -> None:
            also_received.extend(scene.also_slow.receive() for _ in range(total))

        tasks = [Task(read_along)]
        tasks += [
            Task(partial(publish, publisher, islice(of(name, begin), EACH - begin)))
            for name, (publisher, begin) in enumerate(zip(publishers, sent, strict=True))
        ]
        received: list[bytes] = []
        while len(received) < total:
            give_turns(scene.witnesses)
            many = min(READ_AT_ONCE, total - len(received))
            received += [scene.slow.receive() for _ in range(many)]
        for task in tasks:
            task.join()
        assert also_received == received
        for name in range(len(publishers)):
            own = [packet for packet in received if packet.startswith(b"MSG k\0%d " % name)]
            assert own == list(islice(of(name), EACH))
        assert scene.slow.sync() == scene.also_slow.sync() == []
