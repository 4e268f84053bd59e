"""A client may use every feature of its socket: flags, polling, options, timestamps.

Descriptors that it attaches to packets are neither passed on nor kept.
"""

import array
import os
import select
import socket
import struct
import time
from pathlib import Path

import pytest

from tests.support.bus import Bus, running_bus
from tests.support.processes import (
    clients_on_each,
    descriptors,
    descriptors_at_rest,
    several_clients,
    stopped,
    worker_pids,
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


# -- attached file descriptors -----------------------------------------------------------------
def send_with_descriptors(client: RawClient, packet: bytes, fds: list[int]) -> None:
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    client.sock.settimeout(WAIT_MS_MAX / 1_000)
    client.sock.sendmsg([packet], [rights])


def test_attached_descriptors_are_dropped_and_the_packet_is_served(tmp_path: Path) -> None:
    with running_bus(tmp_path) as bus, clients_on_each(bus, 2) as ((client,), (other,)):
        subscribed(other)
        subscribed(client)
        before = descriptors_at_rest(bus)
        with open(os.devnull, "rb") as null:
            for number in range(500):
                attached = [null.fileno()] * (1 + number % 5)
                send_with_descriptors(client, b"MSG k\0%d" % number, attached)
                send_with_descriptors(client, b"SUB k", attached)
                send_with_descriptors(client, b"CMSG unknown", attached)
        expected = [b"MSG k\0%d" % number for number in range(500)]
        assert client.sync() == expected
        for message in expected:
            packet, ancillary, flags, _ = other.sock.recvmsg(100, 1_000)
            assert (packet, ancillary, flags & socket.MSG_CTRUNC) == (message, [], 0)
        assert descriptors(bus) == before


@pytest.mark.parametrize("packet", [b"MSG k\0", b"MSG nobody\0", b"CMSG echo/on", b"SUB a"])
def test_an_attached_descriptor_is_closed(bus: Bus, packet: bytes) -> None:
    """The end of the pipe is at hand as soon as its writer is closed here."""
    with several_clients(bus, 1) as (client,):
        read_end, write_end = os.pipe()
        with open(read_end, "rb", buffering=0) as pipe:
            send_with_descriptors(client, packet, [write_end])
            os.close(write_end)
            client.whoami()
            assert select.select([pipe], [], [], 0)[0], "somebody still holds it open"
            assert pipe.read(1) == b""


def test_a_descriptor_with_a_bad_packet_is_closed(tmp_path: Path) -> None:
    """So are those of the packets behind it, which are not read any more."""
    with running_bus(tmp_path, workers=1) as bus, several_clients(bus, 1) as (client,):
        read_end, write_end = os.pipe()
        with open(read_end, "rb", buffering=0) as pipe:
            with stopped(worker_pids(bus)[0]):
                for _ in range(3):
                    send_with_descriptors(client, b"nonsense", [write_end])
            os.close(write_end)
            assert client.receive() == b""
            assert select.select([pipe], [], [], WAIT_MS_MAX / 1_000)[0]
            assert pipe.read(1) == b""
