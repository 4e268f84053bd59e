"""Messages that wait for a slow client when it changes its policies, queries or leaves.

The expected result is derived from the specification (PROTOCOL, "A slow client" and "Notices"), as
in `test_flood_control`, which tries each combination of choices by itself.
"""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bus import Bus, running_bus
from tests.support.flood import LOST, filling, wait_until_received
from tests.support.processes import several_clients
from tests.support.six_messages import (
    BBB,
    CC,
    OPTIONS,
    SIX,
    TOO_MANY,
    A,
    D,
    Flood,
    in_order,
)

ORDER = ("queue", "stack", "random")
TOO_SLOW = b"CMSG !/error\0too-slow the client's socket was full"


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """One worker, so that it does not matter who joined before."""
    with running_bus(tmp_path_factory.mktemp("flood"), *OPTIONS, workers=1) as running:
        yield running


@pytest.fixture
def run(bus: Bus) -> Iterator[Flood]:
    with several_clients(bus, 3) as (slow, publisher, neighbour):
        yield Flood(slow, publisher, neighbour)


# -- changes while messages wait ---------------------------------------------------------------
@pytest.mark.parametrize("after", ORDER)
@pytest.mark.parametrize("before", ORDER)
def test_queued_messages_are_sent_in_the_order_chosen_last(
    run: Flood, before: str, after: str
) -> None:
    run.begin(f"order/{before}")
    run.publish(A, BBB, D, CC)
    run.control("order/random", "order/stack", "order/queue", f"order/{after}")
    assert run.read() == in_order(after, 4, SIX[:4])


def test_queued_messages_are_kept_when_the_client_chooses_to_drop(run: Flood) -> None:
    run.begin()
    run.publish(A, BBB)
    run.control("blocking/soft/discard")
    run.publish(CC, D)
    assert run.read() == [A, BBB, LOST + b"2"]


def test_a_gap_comes_before_messages_that_were_queued_later(run: Flood) -> None:
    run.begin("blocking/soft/discard")
    run.publish(A, BBB)
    run.control("blocking/soft/queue")
    run.publish(CC, D)
    assert run.read() == [LOST + b"2", CC, D]


def test_choosing_error_has_no_effect_before_the_next_message(run: Flood) -> None:
    run.begin()
    run.publish(A)
    run.control("blocking/soft/error")
    run.control("blocking/soft/queue")
    run.publish(BBB)
    run.control("blocking/soft/error")
    run.publish(CC)
    assert run.read_to_the_end() == [TOO_SLOW]


def test_after_a_drop_a_socket_is_full_until_most_was_read(run: Flood) -> None:
    """Though it would take the message before."""
    run.begin("blocking/soft/discard")
    run.publish(A)
    assert [run.slow.receive(), run.slow.receive()] == run.filling[:2]
    run.publish(BBB)
    del run.filling[:2]
    assert run.read() == [LOST + b"2"]
    run.publish(CC)
    assert run.slow.receive() == CC


# -- the barrier -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("order", "before", "after"),
    [
        ("queue", [A, BBB], [D, CC, LOST + b"2"]),
        ("stack", [LOST + b"2", BBB, A], [CC, D]),
        ("random", [LOST + b"2", BBB, A], [CC, D]),
    ],
)
@pytest.mark.parametrize("chosen_first", [True, False])
def test_the_reply_to_whoami_keeps_its_place(
    run: Flood, order: str, before: list[bytes], after: list[bytes], chosen_first: bool
) -> None:
    """What was accepted before it is sent before it, in the order chosen, and what came later
    follows."""
    run.begin(*[f"order/{order}"] * chosen_first)
    run.publish(A, BBB)
    if not chosen_first:
        run.control("order/random", f"order/{order}")
    run.control("!/cred/whoami")
    run.publish(D, CC, *TOO_MANY)
    packets = [run.slow.receive() for _ in range(len(run.filling) + 6)]
    (reply,) = [packet for packet in packets if packet.startswith(b"CMSG !/cred/whoami\0")]
    assert run.behind_the_filling(packets) == [*before, reply, *after]
    assert run.slow.sync() == []


# -- who is given up ---------------------------------------------------------------------------
def test_a_client_that_is_given_up_is_told_why(run: Flood) -> None:
    run.begin("blocking/hard/error")
    run.publish(A, BBB, D, CC)
    assert run.slow.receive() == run.filling.pop(0)
    run.publish(*TOO_MANY)
    (last,) = run.read_to_the_end()
    assert last.startswith(b"CMSG !/error\0too-slow ")


def test_without_notices_there_is_no_last_notice(run: Flood) -> None:
    run.slow.control(b"blocking/hard/error")
    run.slow.sub(b"k")
    run.slow.whoami()
    run.publish(*run.filling, A, BBB, D, CC)
    assert run.slow.receive() == run.filling.pop(0)
    run.publish(*TOO_MANY)
    assert run.read_to_the_end() == []


def test_it_is_logged_once_and_no_other_client_notices(tmp_path: Path) -> None:
    packets = filling()
    with (
        running_bus(tmp_path, *OPTIONS, workers=1) as bus,
        several_clients(bus, 20) as (bystander, *slow),
    ):
        bystander.sub(b"k")
        bystander.whoami()
        for client in slow:
            client.control(b"blocking/soft/error")
            client.sub(b"k")
            client.whoami()
        for packet in (*packets, A, BBB):  # who has the last one: all had the one before it
            bystander.send(packet)
            assert bystander.receive() == packet
        for client in slow:
            assert client.receive_until_closed() == packets
        bystander.whoami()
        (line,) = bus.stderr_text().splitlines()
        assert "too-slow" in line


def test_a_client_may_flood_itself_and_leave(bus: Bus, run: Flood) -> None:
    """It is disconnected in the middle of its own turn, and leaves in the same one."""
    for leave in (True, False) * 10:
        with bus.connect() as client:
            client.control(b"blocking/soft/error")
            client.sub(b"k")
            client.whoami()
            for packet in (*run.filling, A):
                client.send(packet)
            if leave:
                client.sock.shutdown(socket.SHUT_WR)
            wait_until_received(client)
            run.neighbour.whoami()
            assert client.receive_until_closed() == run.filling
    run.publish(A)


def test_the_dot_dialect_has_the_policies_of_its_bus(tmp_path: Path) -> None:
    options = ("--dialect", "dot", "--soft", "error")
    with (
        running_bus(tmp_path, *OPTIONS, *options, workers=1) as bus,
        bus.connect() as slow,
        bus.connect() as publisher,
    ):
        for client in (slow, publisher):
            client.sub(b"k")
            client.pub(b"k", b"I am here")
            assert client.receive() == b"MSG k\0I am here"
        assert slow.receive() == b"MSG k\0I am here"
        for packet in (*filling(), A, BBB):  # who has the last one: all had the one before it
            publisher.send(packet)
            assert publisher.receive() == packet
        assert slow.receive_until_closed() == filling()
