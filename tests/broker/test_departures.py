"""Clients that leave at any moment: what they sent is delivered, and no other client notices."""

from contextlib import ExitStack

from tests.support.bus import Bus
from tests.support.processes import clients_on_each, descriptors_at_rest, wait_for_descriptors


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
