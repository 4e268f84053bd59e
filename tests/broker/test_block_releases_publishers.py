"""Publishers continue as soon as a stalled client no longer holds them back.

That is when it has read enough, has chosen another policy, no longer subscribes to their messages,
or has left in any way (PROTOCOL, "A slow client"). Its user's held time is never used up here.
"""

import os
import signal
from itertools import islice
from pathlib import Path

import pytest

from tests.support.block_scene import (
    BACKLOG_MESSAGES,
    HARD,
    OPTIONS,
    SIZE,
    SOFT,
    Scene,
    numbered,
    receive_all,
    scene_on,
)
from tests.support.bus import running_bus, wait_until_gone
from tests.support.flood import (
    LOST,
    filling,
    give_turns,
    limit_options,
    send_until_held,
    unread_bytes,
    wait_until_received,
)
from tests.support.processes import clients_on_each, worker_pids
from tests.support.reader_process import reader_process
from tests.support.threads import wait_until


def account(received: list[bytes]) -> int:
    """How many of the numbered messages these are, with those that are told lost in their place."""
    messages, accounted = numbered(), 0
    for packet in received:
        if packet.startswith(LOST):
            lost = int(packet.removeprefix(LOST))
            accounted += len(list(islice(messages, lost)))
        else:
            assert packet == next(messages)
            accounted += 1
    return accounted


# -- room ------------------------------------------------------------------------------------------
def test_a_half_empty_backlog_releases_publishers(tmp_path: Path) -> None:
    """One message at a time, so that at most one too many is kept; and a backlog of several times
    what the socket holds, which is never known exactly."""
    backlog = 400
    options = limit_options(
        backlog_messages_max=backlog, batch_packets_max=1, user_held_seconds_max=60
    )
    with (
        running_bus(tmp_path, *options, workers=1) as bus,
        clients_on_each(bus, 1, 3) as ((slow, publisher, witness),),
    ):
        for choice in HARD:
            slow.control(choice)
        slow.sub(b"k")
        slow.whoami()
        sent = send_until_held(publisher, numbered(), [witness])
        unread = unread_bytes(publisher)
        messages = islice(numbered(), sent)
        for packet in islice(messages, backlog // 2 - 1):
            assert slow.receive() == packet
        give_turns([witness, witness])
        assert unread_bytes(publisher) == unread, "the backlog is still more than half full"
        for packet in islice(messages, len(filling(size=SIZE)) + 2):
            assert slow.receive() == packet
        wait_until(lambda: unread_bytes(publisher) < unread, "the publisher is read again")
        for packet in messages:
            assert slow.receive() == packet
        publisher.whoami()
        assert slow.sync() == []


# -- another choice --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SOFT, b"blocking/soft/discard"),
        (SOFT, b"blocking/soft/queue"),
        (HARD, b"blocking/soft/discard"),
        (HARD, b"blocking/hard/discard"),
    ],
)
def test_a_client_that_chooses_to_drop_releases_publishers(
    scene: Scene, before: tuple[bytes, ...], after: bytes
) -> None:
    """What was accepted before is kept, what is lost from now on is told."""
    scene.subscribe(scene.slow, *before)
    sent = scene.hold()
    scene.slow.control(after)
    scene.publisher.whoami()
    give_turns(scene.witnesses)
    received = scene.slow.sync()
    assert account(received) == sent
    assert received[-1].startswith(LOST), "nothing was lost, though nobody read"


@pytest.mark.parametrize(
    ("before", "after"), [(SOFT, b"blocking/soft/error"), (HARD, b"blocking/hard/error")]
)
def test_a_client_that_chooses_error_is_disconnected(
    small_scene: Scene, before: tuple[bytes, ...], after: bytes
) -> None:
    scene = small_scene
    scene.subscribe(scene.slow, *before)
    sent = scene.hold()
    scene.slow.control(after)
    scene.publisher.whoami()
    received = [p for p in scene.slow.receive_until_closed() if not p.startswith(b"CMSG !/error")]
    assert 0 < len(received) < sent
    assert received == list(islice(numbered(), len(received)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SOFT, (b"blocking/hard/block", b"blocking/soft/queue")),
        (HARD, SOFT),
        (SOFT, (b"blocking/hard/error", b"blocking/hard/discard", b"order/stack", b"order/queue")),
    ],
)
def test_a_client_that_changes_how_it_blocks_loses_nothing(
    small_scene: Scene, before: tuple[bytes, ...], after: tuple[bytes, ...]
) -> None:
    scene = small_scene
    scene.subscribe(scene.slow, *before)
    sent = scene.hold()
    for choice in after:
        scene.slow.control(choice)
    wait_until_received(scene.slow)
    give_turns(scene.witnesses)
    scene.assert_still_held()
    receive_all(scene.slow, sent)
    scene.publisher.whoami()
    assert scene.slow.sync() == []


def test_choosing_block_while_full_holds_publishers(small_scene: Scene) -> None:
    """What was kept and what was lost before stays so."""
    scene = small_scene
    scene.subscribe(scene.slow)
    lost = 30
    before = len(filling(size=SIZE)) + BACKLOG_MESSAGES + lost
    for packet in islice(numbered(), before):
        scene.publisher.send(packet)
    scene.publisher.whoami()
    give_turns(scene.witnesses)
    scene.slow.control(b"blocking/hard/block")
    wait_until_received(scene.slow)
    give_turns(scene.witnesses)
    sent = before + send_until_held(scene.publisher, numbered(begin=before), scene.witnesses)
    received = [scene.slow.receive() for _ in range(sent - lost + 1)]
    assert [packet for packet in received if packet.startswith(LOST)] == [LOST + b"%d" % lost]
    assert account(received) == sent
    scene.publisher.whoami()
    assert scene.slow.sync() == []


# -- another subscription --------------------------------------------------------------------------
def test_a_client_that_unsubscribes_releases_publishers(small_scene: Scene) -> None:
    scene = small_scene
    scene.subscribe(scene.slow, *SOFT)
    sent = scene.hold()
    scene.slow.unsub(b"k")
    scene.publisher.whoami()
    received = scene.slow.sync()
    assert 0 < account(received) == len(received) < sent


@pytest.mark.parametrize("second", [b"k", b"*", b""])
def test_a_client_that_is_still_subscribed_holds_publishers(
    small_scene: Scene, second: bytes
) -> None:
    scene = small_scene
    scene.slow.sub(second)
    scene.subscribe(scene.slow, *SOFT)
    sent = scene.hold()
    scene.slow.unsub(b"k")
    wait_until_received(scene.slow)
    give_turns(scene.witnesses)
    scene.assert_still_held()
    receive_all(scene.slow, sent)
    scene.publisher.whoami()


# -- an end ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("choices", [SOFT, HARD], ids=["soft", "hard"])
def test_a_client_that_leaves_releases_publishers(scene: Scene, choices: tuple[bytes, ...]) -> None:
    scene.subscribe(scene.slow, *choices)
    scene.hold()
    scene.slow.close()
    scene.publisher.whoami()


def test_a_client_that_is_killed_releases_publishers(small_scene: Scene) -> None:
    """A process that ends without a word."""
    scene = small_scene
    with reader_process(scene.bus.address, b"CMSG " + SOFT[0], b"SUB k") as pid:
        scene.hold()
        os.kill(pid, signal.SIGKILL)
        scene.publisher.whoami()


def test_messages_of_a_held_publisher_that_left_are_delivered(small_scene: Scene) -> None:
    scene = small_scene
    scene.subscribe(scene.slow, *SOFT)
    sent = scene.hold()
    last_words = [b"MSG k\0last word %d" % number for number in range(20)]
    for packet in last_words:
        scene.other_publisher.send(packet)
    scene.other_publisher.close()
    give_turns(scene.witnesses)
    received = [scene.slow.receive() for _ in range(sent + len(last_words))]
    assert [packet for packet in received if packet in last_words] == last_words
    assert [p for p in received if p not in last_words] == list(islice(numbered(), sent))
    assert scene.slow.sync() == []


def test_a_stalled_client_outlives_its_worker(tmp_path: Path) -> None:
    """When it reads, publishers go on."""
    with (
        running_bus(tmp_path, *OPTIONS, workers=2) as bus,
        scene_on(bus, 2, 1) as scene,
    ):
        scene.subscribe(scene.slow, *SOFT)
        sent = list(islice(numbered(), scene.hold()))
        pid = worker_pids(bus)[0]
        os.kill(pid, signal.SIGKILL)
        assert wait_until_gone(pid, 10)
        received = [scene.slow.receive()]
        while received[-1] != sent[-1]:
            received.append(scene.slow.receive())
        (lost,) = (packet for packet in received if packet.startswith(LOST))
        assert int(lost.removeprefix(LOST)) == len(sent) - (len(received) - 1)
        scene.publisher.whoami()
        scene.assert_flows(scene.publisher, b"k")


def test_a_stalled_client_outlives_the_worker_of_a_publisher(tmp_path: Path) -> None:
    """It holds back others as before, and loses nothing of theirs."""
    with (
        running_bus(tmp_path, *OPTIONS, workers=2) as bus,
        scene_on(bus, 2, 1) as scene,
    ):
        scene.subscribe(scene.slow, *SOFT)
        scene.subscribe(scene.slow, key=b"j")
        sent = scene.hold()
        os.kill(worker_pids(bus)[1], signal.SIGKILL)
        also_sent = send_until_held(scene.other_publisher, numbered(b"j"), scene.witnesses[:1])
        received: dict[bytes, list[bytes]] = {b"k": [], b"j": []}
        while len(received[b"j"]) < also_sent:
            packet = scene.slow.receive()
            received[packet[4:5]].append(packet)
        assert received[b"j"] == list(islice(numbered(b"j"), also_sent))
        number_of = {packet: number for number, packet in enumerate(islice(numbered(), sent))}
        numbers = [number_of[packet] for packet in received[b"k"]]
        assert numbers == sorted(set(numbers)), "but for those that its worker had read"
        assert numbers[0] == 0
        scene.other_publisher.whoami()


def test_a_bus_ends_though_publishers_are_held(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, *OPTIONS, workers=2) as bus,
        scene_on(bus, 2, 1) as scene,
    ):
        scene.subscribe(scene.slow, *SOFT)
        scene.hold()
        scene.hold(scene.other_publisher)
        bus.process.send_signal(signal.SIGTERM)
        assert bus.process.wait(10) == 0
