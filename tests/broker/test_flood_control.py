"""Flood control: what becomes of messages for a client that does not read, as that client chose.

What must happen is derived from the specification (PROTOCOL, "Flood control" and "Notices"), with
`block` as `discard` for as long as nobody is held back. A socket is filled without chance: nobody
reads, as many packets are published as the kernel holds, and a `whoami` on the reader's worker is
answered once all of them are accepted there.
"""

import fcntl
import socket
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import pytest

from tests.support.bus import Bus, running_bus
from tests.support.raw_client import RawClient

SOFT = ("queue", "discard", "block", "error")
HARD = ("discard", "block", "error")
ORDER = ("queue", "stack", "random")
ALL = list(product(SOFT, HARD, ORDER))
LOST = b"CMSG !/lost\0"
BACKLOG_MESSAGES = 4
SOCKET_BUFFER_BYTES = 20_000
FILLING_BYTES = 2_000
LIMITS = {
    "backlog_messages_max": BACKLOG_MESSAGES,
    "socket_buffer_bytes": SOCKET_BUFFER_BYTES,
    "packet_bytes_max": 8_000,
}
OPTIONS = [word for name, value in LIMITS.items() for word in ("--limit", f"{name}={value}")]


def message(text: bytes, size: int) -> bytes:
    head = b"MSG k\0" + text + b" "
    return head + bytes(size - len(head))


A, BBB, D, CC = message(b"a", 100), message(b"b", 3_000), message(b"d", 50), message(b"c", 2_000)
TOO_MANY = (message(b"e", 70), message(b"f", 5_000))
ARRIVES = {
    "queue": [A, BBB, D, CC, LOST + b"2"],
    "stack": [LOST + b"2", CC, D, BBB, A],
    "random": [LOST + b"2", BBB, CC, A, D],
}
"""Of a backlog that took four messages and had no room for two more."""


def filling() -> list[bytes]:
    """Packets that together fill the socket of a client that does not read, to the last."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    packets: list[bytes] = []
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        while len(packets) < 1_000:
            packet = message(b"fill %d" % len(packets), FILLING_BYTES)
            try:
                ours.send(packet, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return packets
            packets.append(packet)
    raise AssertionError("a socket without an end")


def wait_until_received(client: RawClient) -> None:
    """Wait until the bus has read all that this client sent."""
    deadline = time.monotonic() + 10
    while struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)))[0]:
        assert time.monotonic() < deadline, "the bus does not read this client"
        time.sleep(0.001)


class Flood:
    """A subscriber that does not read, with notices on, a publisher, and somebody else on the
    subscriber's worker."""

    def __init__(self, slow: RawClient, publisher: RawClient, neighbour: RawClient) -> None:
        self.slow = slow
        self.publisher = publisher
        self.neighbour = neighbour
        self.filling = filling()

    def begin(self, *choices: str) -> None:
        """Choose, subscribe, and have the socket filled."""
        for choice in ("!/notices/on", *choices):
            self.slow.control(choice.encode())
        self.slow.sub(b"k")
        self.slow.whoami()
        self.publish(*self.filling)

    def control(self, *keys: str) -> None:
        """What the slow client says without an answer that it could read."""
        for key in keys:
            self.slow.control(key.encode())
        wait_until_received(self.slow)
        self.neighbour.whoami()

    def publish(self, *packets: bytes) -> None:
        for packet in packets:
            self.publisher.send(packet)
        self.publisher.whoami()
        # Once to have it all accepted; and between this answer and the next one the worker has
        # found that the socket takes none of it.
        self.neighbour.whoami()
        self.neighbour.whoami()

    def read(self) -> list[bytes]:
        """All that arrives behind what filled the socket."""
        return self.behind_the_filling(self.slow.sync())

    def read_to_the_end(self) -> list[bytes]:
        """The same, for a client that the bus disconnects."""
        return self.behind_the_filling(self.slow.receive_until_closed())

    def behind_the_filling(self, packets: list[bytes]) -> list[bytes]:
        assert packets[: len(self.filling)] == self.filling
        return packets[len(self.filling) :]


@contextmanager
def several_clients(bus: Bus, count: int) -> Iterator[list[RawClient]]:
    """One after the other: each goes to the worker that has the fewest."""
    with ExitStack() as stack:
        clients = [stack.enter_context(bus.connect()) for _ in range(count)]
        for client in clients:
            client.whoami()
        yield clients


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """One worker, so that it does not matter who joined before."""
    with running_bus(tmp_path_factory.mktemp("flood"), *OPTIONS, workers=1) as running:
        yield running


@pytest.fixture
def run(bus: Bus) -> Iterator[Flood]:
    with several_clients(bus, 3) as (slow, publisher, neighbour):
        yield Flood(slow, publisher, neighbour)


def check_six_messages(run: Flood, soft: str, hard: str, order: str) -> None:
    """For a full socket and a backlog of four; and then the client is as any other, or gone."""
    run.publish(A, BBB, D, CC, *TOO_MANY)
    if soft == "error" or (soft == "queue" and hard == "error"):
        assert run.read_to_the_end() == []
        run.publish(A)
    else:
        assert run.read() == (ARRIVES[order] if soft == "queue" else [LOST + b"6"])
        run.publish(A)
        assert run.slow.sync() == [A]


@pytest.mark.parametrize(("soft", "hard", "order"), ALL)
def test_every_choice(run: Flood, soft: str, hard: str, order: str) -> None:
    run.begin(f"blocking/soft/{soft}", f"blocking/hard/{hard}", f"order/{order}")
    check_six_messages(run, soft, hard, order)


@pytest.mark.parametrize(
    ("soft", "hard", "order"),
    [("queue", "discard", "random"), ("queue", "error", "queue"), ("discard", "block", "stack")],
)
def test_a_choice_of_the_bus_across_workers(
    tmp_path: Path, soft: str, hard: str, order: str
) -> None:
    """What the administrator chose holds for who chooses nothing; a client may choose otherwise."""
    options = ("--soft", soft, "--hard", hard, "--order", order)
    with (
        running_bus(tmp_path, *OPTIONS, *options, workers=2) as bus,
        several_clients(bus, 4) as (on_first, on_second, also_on_first, also_on_second),
    ):
        run = Flood(slow=on_first, publisher=on_second, neighbour=also_on_first)
        run.begin()
        check_six_messages(run, soft, hard, order)
        run = Flood(slow=also_on_second, publisher=also_on_first, neighbour=on_second)
        run.begin("blocking/soft/queue", "blocking/hard/discard", "order/stack")
        check_six_messages(run, "queue", "discard", "stack")


def test_the_last_choice_holds_and_payloads_are_ignored(run: Flood) -> None:
    run.begin(
        *("blocking/soft/error", "blocking/soft/discard", "blocking/soft/queue\0discard"),
        *("blocking/hard/error\0\0", "blocking/hard/discard\0"),
        *("order/random", "order/stack\0order/queue"),
    )
    run.control("order/Queue", "order/", "order/queue/", "blocking/soft", "blocking/hard/queue")
    check_six_messages(run, "queue", "discard", "stack")


def test_nothing_chosen_is_a_queue_that_drops_what_is_too_much(run: Flood) -> None:
    run.begin()
    check_six_messages(run, "queue", "discard", "queue")


# -- changes while messages wait ---------------------------------------------------------------
@pytest.mark.parametrize("after", ORDER)
@pytest.mark.parametrize("before", ORDER)
def test_what_is_queued_is_sent_in_the_order_chosen_last(
    run: Flood, before: str, after: str
) -> None:
    run.begin(f"order/{before}")
    run.publish(A, BBB, D, CC)
    run.control("order/random", "order/stack", "order/queue", f"order/{after}")
    assert run.read() == [packet for packet in ARRIVES[after] if not packet.startswith(LOST)]


def test_what_was_queued_is_kept_when_the_client_chooses_to_drop(run: Flood) -> None:
    run.begin()
    run.publish(A, BBB)
    run.control("blocking/soft/discard")
    run.publish(CC, D)
    assert run.read() == [A, BBB, LOST + b"2"]


def test_what_was_dropped_is_missing_before_what_is_queued_later(run: Flood) -> None:
    run.begin("blocking/soft/discard")
    run.publish(A, BBB)
    run.control("blocking/soft/queue")
    run.publish(CC, D)
    assert run.read() == [LOST + b"2", CC, D]


def test_choosing_error_harms_nobody_before_the_next_message(run: Flood) -> None:
    run.begin()
    run.publish(A)
    run.control("blocking/soft/error")
    run.control("blocking/soft/queue")
    run.publish(BBB)
    run.control("blocking/soft/error")
    run.publish(CC)
    assert run.read_to_the_end() == []


def test_a_client_that_drops_gets_what_finds_room(run: Flood) -> None:
    """As soon as the socket takes it, which is before it is empty."""
    run.begin("blocking/soft/discard")
    run.publish(A)
    assert [run.slow.receive(), run.slow.receive()] == run.filling[:2]
    run.publish(BBB)
    del run.filling[:2]
    assert run.read() == [LOST + b"1", BBB]


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
def test_the_answer_to_whoami_stays_in_its_place(
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
def test_a_last_word_is_sent_if_the_socket_has_room_for_it(run: Flood) -> None:
    run.begin("blocking/hard/error")
    run.publish(A, BBB, D, CC)
    assert run.slow.receive() == run.filling.pop(0)
    run.publish(*TOO_MANY)
    (last,) = run.read_to_the_end()
    assert last.startswith(b"CMSG !/error\0too-slow ")


def test_without_notices_there_is_no_last_word(run: Flood) -> None:
    run.slow.control(b"blocking/hard/error")
    run.slow.sub(b"k")
    run.slow.whoami()
    run.publish(*run.filling, A, BBB, D, CC)
    assert run.slow.receive() == run.filling.pop(0)
    run.publish(*TOO_MANY)
    assert run.read_to_the_end() == []


def test_it_is_logged_once_and_nobody_else_notices(tmp_path: Path) -> None:
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
    """It is given up in the middle of its own turn, and its end comes in the same one."""
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
