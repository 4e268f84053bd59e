"""Echo: a client receives its own messages until it sends `echo/off`."""

import pytest

from tests.support.bus import Bus
from tests.support.processes import clients_on_each


def test_echo_is_on_at_first(bus: Bus) -> None:
    with bus.connect() as client:
        client.sub(b"k")
        client.pub(b"k", b"")
        assert client.sync() == [b"MSG k\0"]


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0payload is ignored"])
def test_echo_is_switched_at_a_point_in_the_stream(bus: Bus, payload: bytes) -> None:
    """All other clients receive everything meanwhile, on the same worker and on the other."""
    with clients_on_each(bus, 2, 2) as ((client, same), (other, _)):
        for subscriber in (client, same, other):
            subscriber.sub(b"k")
            subscriber.whoami()
        own, everything = [], []
        for number in range(100):
            for state in (b"on", b"off"):
                message = b"MSG k\0%b %d" % (state, number)
                client.send(b"CMSG echo/" + state + payload)
                client.send(message)
                everything.append(message)
                if state == b"on":
                    own.append(message)
        assert client.sync() == own
        assert same.sync() == other.sync() == everything


def test_echo_off_affects_no_messages_of_others(bus: Bus) -> None:
    with clients_on_each(bus, 2, 2) as ((client, same), (other, _)):
        client.control(b"echo/off")
        client.sub(b"k")
        client.sub(b"")
        client.pub(b"k", b"own")
        client.whoami()
        for publisher in (same, other):
            publisher.pub(b"k", b"another's")
            publisher.whoami()
        assert client.sync() == [b"MSG k\0another's"] * 2


def test_echo_is_chosen_by_each_client(bus: Bus) -> None:
    with clients_on_each(bus, 2, 2) as ((quiet, same), (other, _)):
        quiet.control(b"echo/off")
        quiet.whoami()
        for client in (same, other):
            client.sub(b"k")
            client.pub(b"k", b"")
            assert client.sync() == [b"MSG k\0"]
            client.unsub(b"k")
            client.whoami()
