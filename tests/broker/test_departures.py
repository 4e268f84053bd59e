"""Clients that leave at any moment: what they sent is delivered, and no other client notices."""

import socket
from contextlib import ExitStack

import pytest

from tests.support.bus import Bus
from tests.support.processes import clients_on_each, descriptors_at_rest, wait_for_descriptors
from tests.support.raw_client import RawClient


def test_what_a_publisher_sent_before_it_closed_is_delivered(bus: Bus) -> None:
    """It never reads its echo, so that there is unread input when it closes."""
    messages = [b"MSG k\0%d" % number for number in range(500)]
    with clients_on_each(bus, 2) as ((same,), (other,)):
        before = descriptors_at_rest(bus)
        for client in (same, other):
            client.sub(b"k")
            client.whoami()
        for _ in range(4):  # the publisher is served by either worker
            with bus.connect() as publisher:
                publisher.sub(b"k")
                for message in messages:
                    publisher.send(message)
            for client in (same, other):
                assert [client.receive() for _ in messages] == messages
            wait_for_descriptors(bus, before)
        assert same.sync() == other.sync() == []


def test_a_publisher_that_leaves_after_one_message(bus: Bus) -> None:
    with clients_on_each(bus, 2) as ((same,), (other,)):
        for client in (same, other):
            client.sub(b"k")
            client.whoami()
        for number in range(300):
            with bus.connect() as publisher:
                publisher.pub(b"k", b"%d" % number)
        expected = {b"MSG k\0%d" % number for number in range(300)}
        for client in (same, other):
            assert {client.receive() for _ in expected} == expected


def test_subscribers_that_vanish_disturb_no_other(bus: Bus) -> None:
    """With messages unread, in the backlog, and on their way."""
    with clients_on_each(bus, 2) as ((stays,), (publisher,)), ExitStack() as stack:
        before = descriptors_at_rest(bus)
        stays.sub(b"k")
        stays.whoami()
        published = 0
        for number in range(60):
            vanishing = stack.enter_context(bus.connect())
            vanishing.sub(b"k")
            vanishing.sub(b"")
            vanishing.whoami()
            for _ in range(100):
                publisher.pub(b"k", b"%d" % published)
                published += 1
            if number % 2:
                vanishing.receive()
            vanishing.close()
            for expected in range(published - 100, published):
                assert stays.receive() == b"MSG k\0%d" % expected
        wait_for_descriptors(bus, before)
        assert stays.sync() == []


def test_all_messages_of_a_half_closed_publisher_are_delivered(bus: Bus) -> None:
    """It said that it will send no more; it finds its own messages, and then the end."""
    with clients_on_each(bus, 2, 2) as ((publisher, same), (other, _)):
        for client in (publisher, same, other):
            client.sub(b"k")
            client.whoami()
        messages = [b"MSG k\0%d" % number for number in range(200)]
        for message in messages:
            publisher.send(message)
        publisher.sock.shutdown(socket.SHUT_WR)
        assert publisher.receive_until_closed() == messages
        for client in (same, other):
            assert client.sync() == messages


@pytest.mark.parametrize("subscribed", [False, True])
def test_a_client_that_stops_reading_may_still_publish(bus: Bus, subscribed: bool) -> None:
    with clients_on_each(bus, 2, 2) as ((publisher, same), (other, _)):
        for client in (same, other):
            client.sub(b"k")
            client.whoami()
        if subscribed:
            publisher.sub(b"k")
            publisher.whoami()
        publisher.sock.shutdown(socket.SHUT_RD)
        messages = [b"MSG k\0%d" % number for number in range(200)]
        for message in messages:
            publisher.send(message)
        for client in (same, other):
            assert [client.receive() for _ in messages] == messages


def test_a_client_that_closed_is_forgotten(bus: Bus) -> None:
    before = descriptors_at_rest(bus)
    clients = [RawClient(bus.address) for _ in range(50)]
    for number, client in enumerate(clients):
        client.sub(b"k%d" % number)
        client.whoami()
    for client in clients:
        client.close()
    wait_for_descriptors(bus, before)
