"""A client may use every feature of its socket: flags, polling, options, timestamps."""

import select
import socket

import pytest

from tests.support.bus import Bus
from tests.support.processes import (
    clients_on_each,
)
from tests.support.raw_client import RawClient

WAIT_MS_MAX = 10_000


def subscribed(client: RawClient) -> RawClient:
    client.sub(b"k")
    client.whoami()
    return client


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
