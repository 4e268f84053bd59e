"""The session over socketpairs: what it reads and gathers, and the end of a connection."""

import socket
from collections.abc import Iterator
from typing import cast

import pytest

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.worker.publish_batch import PublishBatch, gather
from sbus.broker.worker.router import Route
from sbus.broker.worker.session import Connection, Session
from sbus.errors import Refusal
from sbus.limits import Limits
from sbus.unix.credentials import Credentials
from sbus.unix.fd_passing import may_carry_descriptors, refuse_descriptors
from tests.unit.shared.memories import open_account, spare_slot

A, B = b"MSG here\0a", b"MSG here\0b"
LIMITS = Limits(packet_bytes_max=100, batch_packets_max=5, batch_bytes_max=300)


class NoOutbox:
    """Sends nothing."""

    slot_at = 0
    controls_waiting = 0

    @property
    def outbox(self) -> "NoOutbox":
        return self


OWN_OUTBOX = cast(Outbox, NoOutbox())
OTHER_OUTBOX = cast(Outbox, NoOutbox())
ROUTES = {
    b"here": Route(0, (OWN_OUTBOX, OTHER_OUTBOX)),
    b"away": Route(2, ()),
}


def look_up(key: bytes) -> Route:
    if key == b"!":
        raise Refusal("reserved", "not yours")
    return ROUTES[key]


def open_session(connection: Connection, limits: Limits) -> Session:
    profile = AccessProfile(publish=0, subscribe=0, may_block_others=False)
    return Session(connection, OWN_OUTBOX, profile, limits)


class Pair:
    """A session and the client's end of its connection."""

    def __init__(self) -> None:
        ours, self.client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.client.settimeout(60)
        account = open_account(LIMITS)
        own = Credentials(gid=1, uid=2, pid=3)
        self.connection = Connection(1, own, account, ours, spare_slot())
        self.session = open_session(self.connection, LIMITS)

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self.client.send(packet)

    def steps(self) -> list[bytes]:
        """Every packet of the batch, one by one."""
        packets = []
        while self.session.has_pending():
            packets.append(self.session.peek())
            self.session.skip()
        return packets

    def receive(self) -> list[bytes]:
        self.session.receive()
        return self.steps()

    def gather(self) -> list[bytes]:
        return packets_of(gather(self.session, {}, look_up, 1000))


def packets_of(batch: PublishBatch) -> list[bytes]:
    return [packet for packet, _, _ in batch.messages]


@pytest.fixture
def pair() -> Iterator[Pair]:
    opened = Pair()
    yield opened
    opened.client.close()
    opened.session.sock.close()


def test_a_batch_ends_with_a_packet_that_is_no_message(pair: Pair) -> None:
    """A successor of the worker finds it, and the number of messages before it."""
    slot, request = pair.session.slot, b"SUB " + b"x" * 90
    pair.send(A, request, B)
    pair.session.receive()
    assert pair.session.packets == [A, request]
    assert pair.session.is_readable
    assert (slot.request, slot.pending) == (request, 2)
    assert pair.gather() == [A]
    pair.session.share_pending()
    assert (slot.request, slot.pending) == (request, 1)
    pair.session.skip()
    assert (slot.request, slot.pending) == (b"", 0)
    assert pair.receive() == [B]


def test_a_request_is_kept_until_its_reply_is_sent(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoOutbox, "controls_waiting", 1)
    pair.send(b"CMSG !/cred/whoami")
    assert pair.receive() == [b"CMSG !/cred/whoami"]
    assert pair.session.slot.request == b"CMSG !/cred/whoami"
    monkeypatch.undo()
    pair.session.settle()
    assert not pair.session.slot.request


def test_a_batch_ends_with_the_packet_that_fills_its_bytes(pair: Pair) -> None:
    packet = b"MSG " + bytes(96)
    pair.send(*[packet] * 4)
    assert pair.receive() == [packet] * 3
    assert pair.session.is_readable
    assert pair.receive() == [packet]


def test_a_session_knows_whether_its_packets_may_carry_descriptors(pair: Pair) -> None:
    assert pair.session.may_carry_descriptors
    refuse_descriptors(pair.connection.sock)
    may_carry = open_session(pair.connection, LIMITS).may_carry_descriptors
    assert may_carry == may_carry_descriptors(pair.connection.sock)


def test_large_messages_are_more_work(pair: Pair) -> None:
    limits = Limits(packet_bytes_max=100_000)
    session = open_session(pair.connection, limits)
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 200_000)
    pair.send(b"MSG here\0" + bytes(40_960 - 9))
    assert session.receive() == 10, "pages of the packet that was read"
    # A message and two deliveries of ten pages.
    assert gather(session, ROUTES, look_up, 1000).cost == 3 + 2 * 10


# -- publish batches -------------------------------------------------------------------------------
def test_a_known_route_is_not_looked_up(pair: Pair) -> None:
    def fail(key: bytes) -> Route:
        raise AssertionError(f"looked up {key!r}")

    pair.send(b"MSG here\0a")
    pair.session.receive()
    ((packet, key, route),) = gather(pair.session, ROUTES, fail, 1000).messages
    assert (packet, key) == (b"MSG here\0a", b"here")
    assert route is ROUTES[b"here"]


@pytest.mark.usefixtures("real_time")
def test_what_takes_too_long_to_find_anew_goes_back(pair: Pair) -> None:
    pair.send(b"MSG here\0a", b"MSG here\0b", b"MSG here\0c")
    pair.session.receive()
    batch = gather(pair.session, ROUTES, look_up, 1000)
    batch.look_up_again(look_up, seconds_max=0)
    assert packets_of(batch) == [b"MSG here\0a"]
    batch.count_published()
    assert pair.gather() == [b"MSG here\0b", b"MSG here\0c"]
