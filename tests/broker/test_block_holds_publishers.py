"""A client that chose `block` and does not read holds back its publishers, and no other client.

Nothing is lost then, and all messages arrive in one order, on whatever workers the clients are
(PROTOCOL, "A slow client"). `test_block_releases_publishers` shows how publishers are released,
`test_block_budget` that they are in any case.
"""

from collections.abc import Iterator
from functools import partial
from itertools import count, islice

import pytest

from tests.support.block_scene import HARD, SIZE, SOFT, Scene, Scenes, numbered, receive_all
from tests.support.flood import (
    ask,
    assert_held,
    await_answer,
    filling,
    give_turns,
    message,
    send_until_held,
    wait_until_received,
)
from tests.support.raw_client import RawClient
from tests.support.threads import Task


# -- who is held back ------------------------------------------------------------------------------
@pytest.mark.parametrize("choices", [SOFT, HARD], ids=["soft", "hard"])
def test_a_publisher_is_not_read_until_there_is_room(
    scene: Scene, choices: tuple[bytes, ...]
) -> None:
    scene.subscribe(scene.slow, *choices)
    sent = scene.hold()
    for publisher in (scene.slow, scene.other_publisher, scene.bystander):
        scene.assert_flows(publisher, b"another key")
    scene.assert_still_held()
    receive_all(scene.slow, sent)
    scene.publisher.whoami()
    assert scene.slow.sync() == []
    scene.assert_flows(scene.publisher, b"k")
    assert scene.slow.sync() == [b"MSG k\0flows"]


def test_messages_of_a_held_publisher_keep_their_order(small_scene: Scene) -> None:
    """Packets that it sent after the held message wait as well, control messages included."""
    scene = small_scene
    scene.subscribe(scene.slow, *SOFT)
    scene.subscribe(scene.bystander, key=b"j")
    packets = [*filling(), *(message(b"more %d" % number, SIZE) for number in range(3))]
    for packet in packets:
        scene.publisher.send(packet)
        give_turns(scene.witnesses)
    scene.publisher.pub(b"j", b"behind")
    ask(scene.publisher)
    assert_held(scene.publisher, scene.witnesses)
    scene.bystander.receive_nothing()
    assert [scene.slow.receive() for _ in packets] == packets
    assert scene.bystander.receive() == b"MSG j\0behind"
    await_answer(scene.publisher)


def test_a_publisher_held_by_two_clients_waits_for_both(small_scene: Scene) -> None:
    scene = small_scene
    scene.subscribe(scene.slow, *SOFT)
    scene.subscribe(scene.also_slow, *SOFT)
    sent = scene.hold()
    read = len(scene.slow.sync())
    assert read > 0
    scene.assert_still_held()
    assert scene.slow.sync() == []
    for number in range(sent):
        packet = message(b"%d" % number, SIZE)
        assert scene.also_slow.receive() == packet
        if number >= read:
            assert scene.slow.receive() == packet
    scene.publisher.whoami()
    assert scene.slow.sync() == scene.also_slow.sync() == []


def test_publishers_wait_only_for_the_client_they_publish_to(small_scene: Scene) -> None:
    scene = small_scene
    scene.subscribe(scene.slow, *SOFT)
    scene.subscribe(scene.also_slow, *SOFT, key=b"j")
    sent = scene.hold()
    also_sent = scene.hold(scene.other_publisher, b"j")
    receive_all(scene.slow, sent)
    scene.publisher.whoami()
    scene.assert_still_held(scene.other_publisher)
    receive_all(scene.also_slow, also_sent, b"j")
    scene.other_publisher.whoami()
    assert scene.slow.sync() == scene.also_slow.sync() == []


def test_two_clients_that_hold_each_other_continue_when_they_read(small_scene: Scene) -> None:
    scene = small_scene
    scene.subscribe(scene.slow, *SOFT)
    scene.subscribe(scene.also_slow, *HARD, key=b"j")
    to_also_slow = scene.hold(scene.slow, b"j")
    to_slow = scene.hold(scene.also_slow)
    scene.assert_still_held(scene.slow)
    scene.assert_still_held(scene.also_slow)
    receive_all(scene.slow, to_slow)
    receive_all(scene.also_slow, to_also_slow, b"j")
    assert scene.slow.sync() == scene.also_slow.sync() == []


@pytest.mark.parametrize("choices", [SOFT, HARD], ids=["soft", "hard"])
def test_a_client_may_hold_itself_back_and_continue_to_read(
    small_scene: Scene, choices: tuple[bytes, ...]
) -> None:
    small_scene.subscribe(small_scene.slow, *choices)
    sent = small_scene.hold(small_scene.slow)
    receive_all(small_scene.slow, sent)
    assert small_scene.slow.sync() == []


def test_with_echo_off_a_client_does_not_hold_itself_back(small_scene: Scene) -> None:
    """It is full of what another one published."""
    scene = small_scene
    scene.subscribe(scene.slow, b"echo/off", *SOFT)
    sent = scene.hold()
    for _ in range(100):
        scene.slow.pub(b"k", b"not for me")
    scene.assert_flows(scene.slow, b"said after that")
    scene.assert_still_held()
    receive_all(scene.slow, sent)
    scene.publisher.whoami()


def test_a_stalled_client_is_still_served(small_scene: Scene) -> None:
    """It subscribes, publishes and queries; the reply keeps its place."""
    scene = small_scene
    scene.subscribe(scene.slow, *SOFT)
    sent = scene.hold()
    ask(scene.slow)
    wait_until_received(scene.slow)
    received = [scene.slow.receive() for _ in range(sent + 1)]
    (answer,) = [packet for packet in received if packet.startswith(b"CMSG ")]
    received.remove(answer)
    assert received == [message(b"%d" % number, SIZE) for number in range(sent)]
    scene.publisher.whoami()


# -- whose messages match --------------------------------------------------------------------------
def receive_both(scene: Scene, sent: dict[bytes, int]) -> None:
    """All that two publishers sent, each under its own key, arrives; then both are served."""
    received = [scene.slow.receive() for _ in range(sum(sent.values()))]
    for key, number in sent.items():
        own = [packet for packet in received if packet.startswith(b"MSG %b\0" % key)]
        assert own == list(islice(numbered(key), number))
    for publisher in (scene.publisher, scene.other_publisher):
        publisher.whoami()
    assert scene.slow.sync() == []


@pytest.mark.parametrize("chosen_first", [True, False])
def test_one_matching_pattern_of_thousands_is_enough(
    small_scene: Scene, chosen_first: bool
) -> None:
    scene = small_scene
    if chosen_first:
        scene.slow.control(SOFT[0])
    for number in range(3_000):
        scene.slow.sub(b"many/%d" % number)
    if not chosen_first:
        scene.slow.control(SOFT[0])
    scene.slow.whoami()
    sent = {b"many/2999": scene.hold(key=b"many/2999")}
    sent[b"many/0"] = scene.hold(scene.other_publisher, b"many/0")
    scene.assert_flows(scene.bystander, b"many/3000")
    scene.assert_flows(scene.bystander, b"many/")
    scene.assert_still_held()
    receive_both(scene, sent)


def test_a_subscription_made_while_stalled_holds_publishers(small_scene: Scene) -> None:
    scene = small_scene
    scene.subscribe(scene.slow, *SOFT)
    sent = scene.hold()
    scene.assert_flows(scene.other_publisher, b"j")
    scene.slow.sub(b"j")
    wait_until_received(scene.slow)
    give_turns(scene.witnesses)
    also_sent = scene.hold(scene.other_publisher, b"j")
    receive_both(scene, {b"k": sent, b"j": also_sent})


# -- nothing is lost -------------------------------------------------------------------------------
EACH = 1_200
READ_AT_ONCE = 300


def of(name: int, begin: int = 0, key: bytes = b"k") -> Iterator[bytes]:
    return (message(b"%d %d" % (name, number), SIZE, key) for number in count(begin))


def publish(publisher: RawClient, packets: Iterator[bytes]) -> None:
    for packet in packets:
        publisher.send(packet)
    publisher.whoami()


def test_clients_with_other_keys_publish_thousands_meanwhile(small_scene: Scene) -> None:
    """Its subscriber chose the same, so that nothing is lost, and reads."""
    scene = small_scene
    scene.subscribe(scene.slow, *SOFT)
    scene.subscribe(scene.bystander, *SOFT, key=b"j")
    held = scene.hold()
    publishers = (scene.other_publisher, scene.also_slow)
    tasks = [
        Task(partial(publish, publisher, islice(of(name, key=b"j"), EACH)))
        for name, publisher in enumerate(publishers)
    ]
    received = [scene.bystander.receive() for _ in range(EACH * len(publishers))]
    for task in tasks:
        task.join()
    for name in range(len(publishers)):
        own = [packet for packet in received if packet.startswith(b"MSG j\0%d " % name)]
        assert own == list(islice(of(name, key=b"j"), EACH))
    assert scene.bystander.sync() == []
    scene.assert_still_held()
    receive_all(scene.slow, held)
    scene.publisher.whoami()
    assert scene.slow.sync() == []


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
