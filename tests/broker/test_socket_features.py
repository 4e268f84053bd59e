"""A client may use every feature of its socket: flags, polling, options, timestamps."""

import select
import socket
import struct
import time

import pytest

from tests.support.bus import Bus
from tests.support.processes import (
    clients_on_each,
    several_clients,
)
from tests.support.raw_client import RawClient

SO_TIMESTAMP = 29
SO_TIMESTAMPNS = 35
"""As <asm-generic/socket.h> has them; the socket module does not name them."""
WAIT_MS_MAX = 10_000


def subscribed(client: RawClient) -> RawClient:
    client.sub(b"k")
    client.whoami()
    return client


def test_peeking_consumes_nothing(bus: Bus) -> None:
    with several_clients(bus, 1) as (client,):
        subscribed(client).pub(b"k", b"1")
        client.pub(b"k", b"2")
        for _ in range(3):
            assert client.sock.recv(100, socket.MSG_PEEK) == b"MSG k\x001"
        assert client.receive() == b"MSG k\x001"
        assert client.receive() == b"MSG k\x002"


def test_the_true_length_of_a_packet_can_be_asked_for(bus: Bus) -> None:
    with several_clients(bus, 1) as (client,):
        subscribed(client).pub(b"k", bytes(5_000))
        client.pub(b"k", b"next")
        buffer = bytearray(10)
        assert client.sock.recv_into(buffer, 10, socket.MSG_PEEK | socket.MSG_TRUNC) == 5_006
        packet, _, flags, _ = client.sock.recvmsg(10)
        assert packet == b"MSG k\0" + bytes(4)
        assert flags & socket.MSG_TRUNC
        packet, _, flags, _ = client.sock.recvmsg(100)
        assert packet == b"MSG k\0next"
        assert not flags & socket.MSG_TRUNC


def test_receiving_without_waiting(bus: Bus) -> None:
    with several_clients(bus, 1) as (client,):
        subscribed(client).sock.settimeout(None)
        with pytest.raises(BlockingIOError):
            client.sock.recv(100, socket.MSG_DONTWAIT)
        client.sock.send(b"MSG k\0payload", socket.MSG_DONTWAIT)
        assert client.sync() == [b"MSG k\0payload"]


def test_poll_reports_messages_and_the_end(bus: Bus) -> None:
    with clients_on_each(bus, 2) as ((publisher,), (client,)):
        subscribed(client)
        poll = select.poll()
        poll.register(client, select.POLLIN | select.POLLOUT)
        assert poll.poll(0) == [(client.fileno(), select.POLLOUT)]
        poll.modify(client, select.POLLIN | select.POLLRDHUP)
        assert poll.poll(0) == []
        publisher.pub(b"k", b"")
        assert poll.poll(WAIT_MS_MAX) == [(client.fileno(), select.POLLIN)]
        assert select.select([client], [client], [], 0) == ([client], [client], [])
        assert client.receive() == b"MSG k\0"
        client.send(b"nonsense")
        ((_, events),) = poll.poll(WAIT_MS_MAX)
        assert events & (select.POLLRDHUP | select.POLLHUP)
        assert client.receive() == b""


@pytest.mark.parametrize("edge_triggered", [False, True])
def test_epoll_reports_messages(bus: Bus, edge_triggered: bool) -> None:
    with clients_on_each(bus, 2) as ((publisher,), (client,)), select.epoll() as epoll:
        subscribed(client)
        epoll.register(client, select.EPOLLIN | (select.EPOLLET if edge_triggered else 0))
        ready = [(client.fileno(), select.EPOLLIN)]
        assert epoll.poll(0) == []
        for number in range(100):
            publisher.pub(b"k", b"%d" % number)
            assert epoll.poll(WAIT_MS_MAX / 1_000) == ready
            assert epoll.poll(0) == ([] if edge_triggered else ready)
            if number % 10 == 9:
                for earlier in range(number - 9, number + 1):
                    assert client.sock.recv(100, socket.MSG_DONTWAIT) == b"MSG k\0%d" % earlier
                assert epoll.poll(0) == []


@pytest.mark.parametrize(
    ("option", "layout", "per_second"), [(SO_TIMESTAMP, "ll", 10**6), (SO_TIMESTAMPNS, "ll", 10**9)]
)
def test_messages_have_receive_timestamps(
    bus: Bus, option: int, layout: str, per_second: int
) -> None:
    with clients_on_each(bus, 2) as ((publisher,), (client,)):
        subscribed(client).sock.setsockopt(socket.SOL_SOCKET, option, 1)
        before = time.time_ns() // 1_000
        publisher.pub(b"k", b"")
        packet, ancillary, _, _ = client.sock.recvmsg(100, 1_000)
        after = time.time_ns() // 1_000
        assert packet == b"MSG k\0"
        ((level, kind, data),) = ancillary
        assert (level, kind) == (socket.SOL_SOCKET, option)
        seconds, fraction = struct.unpack(layout, data)
        assert before <= (seconds * per_second + fraction) * 10**6 // per_second <= after


def test_any_receive_buffer_size_works(bus: Bus) -> None:
    with several_clients(bus, 1) as (client,):
        for size in (1, 2_304, 1_000_000):
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
            client.pub(b"other", bytes(100_000))
            subscribed(client).pub(b"k", bytes(100_000))
            assert client.sync() == [b"MSG k\0" + bytes(100_000)]
            client.unsub(b"k")
