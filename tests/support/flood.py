"""Clients that do not read, and publishers that are held back for them, seen from outside.

A socket is filled deterministically: its client does not read, and as many packets are published as
the kernel holds. The proof that a publisher is held back needs no waiting: *witnesses*, clients of
the same user on all workers that took part, are answered twice, and the publisher, whose turn came
in between, is not.
"""

import fcntl
import select
import socket
import struct
import termios
import time
from collections.abc import Iterable, Sequence
from itertools import islice

from tests.support.raw_client import WHOAMI, RawClient

LOST = b"CMSG !/lost\0"
WHOAMI_REPLY = b"CMSG " + WHOAMI + b"\0"
SOCKET_BUFFER_BYTES = 20_000
PACKET_BYTES_MAX = 8_000
"""Small enough not to make the server's sockets any larger than `SOCKET_BUFFER_BYTES`."""
FILLING_BYTES = 2_000
_ROUNDS = 3
"""Two after which everybody has had a turn, whose place in the log comes before what each witness's
worker walks in the third."""
_PATIENCE_SECONDS = 60.0
_ACCEPTED_MAX = 10_000
"""More messages than fit into all sockets and logs of a test."""


def limit_options(**limits: float) -> list[str]:
    """The command line of a bus with small sockets and these limits."""
    small = {"socket_buffer_bytes": SOCKET_BUFFER_BYTES, "packet_bytes_max": PACKET_BYTES_MAX}
    chosen = {**small, **limits}
    return [word for name, value in chosen.items() for word in ("--limit", f"{name}={value}")]


def message(text: bytes, size: int, key: bytes = b"k") -> bytes:
    """A message whose whole packet has this size; `text` tells it from others."""
    head = b"MSG %b\0%b " % (key, text)
    return head + bytes(size - len(head))


def filling(key: bytes = b"k", size: int = FILLING_BYTES) -> list[bytes]:
    """Packets that together fill the socket of a client that does not read, to the last."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    packets: list[bytes] = []
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        while len(packets) < 10_000:
            packet = message(b"fill %d" % len(packets), size, key)
            try:
                ours.send(packet, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return packets
            packets.append(packet)
    raise AssertionError("a socket without an end")


# -- what the bus has read -------------------------------------------------------------------------
def unread_bytes(client: RawClient) -> int:
    """What the bus has not yet read of what this client sent."""
    (count,) = struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)))
    assert isinstance(count, int)
    return count


def give_turns(witnesses: Iterable[RawClient]) -> None:
    """Return when every client that was ready has had a turn on each witness's worker."""
    for _ in range(_ROUNDS):
        for witness in witnesses:
            witness.whoami()


def send_until_held(
    publisher: RawClient, packets: Iterable[bytes], witnesses: Sequence[RawClient]
) -> int:
    """Send without waiting until the bus has stopped reading; returns the number of packets."""
    sent, is_held = send_while_read(publisher, packets, witnesses)
    assert is_held, f"not held back after {sent} messages"
    return sent


def send_while_read(
    publisher: RawClient, packets: Iterable[bytes], witnesses: Sequence[RawClient]
) -> tuple[int, bool]:
    """Send without waiting; returns the number of packets, and whether the bus stopped reading
    before they were sent."""
    publisher.sock.settimeout(0)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    sent = 0
    for packet in islice(packets, _ACCEPTED_MAX):
        while not _try_to_send(publisher, packet):
            unread = unread_bytes(publisher)
            give_turns(witnesses)
            if unread and unread_bytes(publisher) == unread:
                return sent, True
            assert time.monotonic() < deadline, f"neither read nor held after {sent} messages"
        sent += 1
    return sent, False


def _try_to_send(client: RawClient, packet: bytes) -> bool:
    try:
        client.sock.send(packet)
    except BlockingIOError:
        return False
    return True


def ask(client: RawClient) -> None:
    """Ask `whoami`, to find out later whether it was answered."""
    client.control(WHOAMI)


def assert_held(publisher: RawClient, witnesses: Sequence[RawClient]) -> None:
    """The client's query is not answered, although every client had more than one turn."""
    unread = unread_bytes(publisher)
    give_turns(witnesses)
    give_turns(witnesses)
    publisher.receive_nothing()
    assert unread_bytes(publisher) == unread


def is_answered(client: RawClient, witnesses: Sequence[RawClient]) -> bool:
    """Whether the bus goes on reading the client until it answers its query."""
    while True:
        unread = unread_bytes(client)
        give_turns(witnesses)
        if select.select([client], [], [], 0)[0]:
            return True
        if unread_bytes(client) == unread:
            return False


def await_answer(publisher: RawClient) -> None:
    """The client's query is answered."""
    assert publisher.receive().startswith(WHOAMI_REPLY)
