"""Ending connections: the other end reads everything, and no unread packet costs it the last."""

import os
import select
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sbus.unix.closing import discard_unread, end_connection, is_hung_up, send_last

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The server's end and the client's."""
    ours, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    client.settimeout(60)
    yield ours, client
    ours.close()
    client.close()


@pytest.mark.parametrize("half_closed", [False, True], ids=["open", "half-closed"])
@pytest.mark.parametrize(
    "unread",
    [[], [b"x"], [b"x"] * 20, [b"", b"", b"y"], [b"x" * 90, b"", b"y"]],
    ids=["none", "one", "many", "empty ones", "mixed"],
)
def test_the_last_notice_reaches_a_client_with_unread_packets(
    pair: Pair, unread: list[bytes], half_closed: bool
) -> None:
    ours, client = pair
    for packet in unread:
        client.send(packet)
    if half_closed:
        client.shutdown(socket.SHUT_WR)
    discard_unread(ours, 100)
    ours.send(b"last word")
    end_connection(ours)
    ours.close()
    assert client.recv(100) == b"last word"
    assert client.recv(100) == b""


def test_discarding_is_bounded(pair: Pair) -> None:
    """A client that goes on sending is stopped, not followed."""
    ours, client = pair
    client.settimeout(0.0)
    with suppress(BlockingIOError):
        while True:
            client.send(b"x")
    discard_unread(ours, 10)
    with pytest.raises(BrokenPipeError):
        client.send(b"nobody reads any more")


@pytest.mark.parametrize("how", [socket.SHUT_WR, None], ids=["half-closed", "closed"])
def test_the_end_is_not_read_again_and_again(pair: Pair, how: int | None) -> None:
    ours, client = pair
    client.send(b"x")
    if how is None:
        client.close()
    else:
        client.shutdown(how)
    reads = Counting(ours.detach())
    discard_unread(reads, 1_000)
    assert reads.count < 50
    reads.close()


class Counting(socket.socket):
    """Counts what is read from it."""

    def __init__(self, fd: int) -> None:
        super().__init__(fileno=fd)
        self.setblocking(False)
        self.count = 0

    def recv(self, *arguments: int) -> bytes:
        self.count += 1
        return super().recv(*arguments)

    def recvmsg(self, *arguments: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
        self.count += 1
        return super().recvmsg(*arguments)


def test_packets_with_descriptors_are_not_read(pair: Pair) -> None:
    """To drop a descriptor is to close a file, perhaps."""
    ours, client = pair
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as pipe:
        client.send(b"before")
        socket.send_fds(client, [b"with"], [write_end])
        os.close(write_end)
        discard_unread(ours, 100)
        assert not select.select([pipe], [], [], 0)[0]
        assert ours.recv(100) == b"with"
        assert select.select([pipe], [], [], 0)[0]


def test_ending_a_connection_ends_every_copy_of_it(pair: Pair) -> None:
    ours, client = pair
    with ours.dup() as copy:
        end_connection(ours)
        assert client.recv(1) == b""
        with pytest.raises(BrokenPipeError):
            copy.send(b"x")


@pytest.mark.parametrize("unread", [False, True])
def test_ending_a_connection_that_the_client_closed_is_no_error(pair: Pair, unread: bool) -> None:
    ours, client = pair
    if unread:
        ours.send(b"x")
    client.close()
    discard_unread(ours, 10)
    end_connection(ours)


def test_an_end_is_told_from_an_empty_packet(pair: Pair) -> None:
    ours, client = pair
    assert not is_hung_up(ours)
    client.send(b"")
    assert not is_hung_up(ours)
    client.shutdown(socket.SHUT_WR)
    assert is_hung_up(ours)


def test_a_last_packet_needs_room(pair: Pair) -> None:
    ours, client = pair
    with suppress(BlockingIOError):
        while True:
            ours.send(b"x" * 10_000)
    assert not send_last(ours, b"why")
    while not send_last(ours, b"why"):
        client.recv(10_000)
    end_connection(ours)
    packets = []
    while packet := client.recv(10_000):
        packets.append(packet)
    assert packets[-1] == b"why"


@pytest.mark.parametrize("unread", [False, True], ids=["EPIPE", "ECONNRESET"])
def test_a_last_packet_to_a_client_that_has_left_is_not_sent(pair: Pair, unread: bool) -> None:
    ours, client = pair
    if unread:
        ours.send(b"unread")
    client.close()
    assert send_last(ours, b"why")
