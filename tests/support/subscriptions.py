"""Clients whose subscriptions have to go on, whatever happens to their bus."""

from collections.abc import Sequence

from tests.support.raw_client import RawClient


def subscribe(clients: Sequence[RawClient]) -> list[bytes]:
    """Twice to one pattern, to a key of its own and to secret messages; their credentials."""
    for number, client in enumerate(clients):
        for pattern in (b"a/*", b"a/*", b"own/%d" % number, b"!/cred////secret"):
            client.sub(pattern)
    return [client.whoami() for client in clients]


def assert_subscribed(clients: Sequence[RawClient], own: Sequence[bytes]) -> None:
    """Each client receives what is for it, in one order."""
    clients[0].pub(b"a/x", b"1")
    for number, credentials in enumerate(own):
        clients[0].pub(b"own/%d" % number, b"2")
        clients[0].pub(b"%b/secret" % credentials, b"3")
    secrets = [b"MSG %b/secret\x003" % credentials for credentials in own]
    for number, client in enumerate(clients):
        expected = [b"MSG a/x\x001", *secrets]
        expected.insert(1 + number, b"MSG own/%d\x002" % number)
        assert [client.receive() for _ in expected] == expected


def assert_each_counts(clients: Sequence[RawClient]) -> None:
    """A pattern to which a client is subscribed twice is unsubscribed from twice."""
    for client in clients:
        client.unsub(b"a/*")
        client.sync()
    clients[0].pub(b"a/x", b"once")
    for client in clients:
        assert client.receive() == b"MSG a/x\0once"
        client.unsub(b"a/*")
        client.sync()
    clients[0].pub(b"a/x", b"nobody")
    for client in clients:
        assert client.sync() == []
