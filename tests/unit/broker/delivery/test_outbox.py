"""The outbox over real sockets: turns, the end, and a kernel that is out of memory or time."""

import errno
import socket
from collections.abc import Callable, Iterator

import pytest

from sbus.broker.delivery.outbox_ledger import OutboxStatistics
from sbus.limits import Limits
from sbus.protocol.controls import Soft
from sbus.shared.client_slots import ClientSlot, client_slots_words
from tests.unit.broker.delivery.outbox_peer import (
    Peer,
    limits,
    make_moody,
    open_peers,
    total,
)

Make = Callable[[Limits], Peer]


@pytest.fixture
def peers() -> Iterator[Make]:
    with open_peers() as make:
        yield make


@pytest.mark.parametrize("unread", [False, True], ids=["EPIPE", "ECONNRESET"])
def test_nothing_is_delivered_to_a_peer_that_has_gone(peers: Make, unread: bool) -> None:
    peer = peers(limits())
    if unread:
        peer.deliver(b"unread")
    peer.sock.close()
    for _ in range(3):
        peer.deliver(b"x")
    assert peer.outbox.drops_from_bytes == 0, "further messages must be only counted"
    peer.outbox.send_control(b"reply")
    assert peer.outbox.is_closed
    assert peer.outbox.controls_waiting == 0
    statistics = peer.outbox.statistics()
    assert statistics.undelivered == 3
    assert total(statistics) == statistics.accepted == 3 + unread


def test_a_reply_that_was_sent_is_over_though_what_is_behind_it_waits(peers: Make) -> None:
    """A successor would carry the request out once more."""
    slot = ClientSlot(memoryview(bytearray(8 * client_slots_words(1))).cast("Q"), 0)
    slot.keep_request(b"CMSG !/cred/whoami", 1)
    peer = peers(limits())
    peer.outbox.use_slot(slot)
    peer.fill()
    peer.outbox.send_control(b"notice")
    peer.outbox.send_control(b"reply", is_reply=True)
    for _ in range(5):
        peer.outbox.send_control(bytes(3_000))
    assert slot.request
    peer.read()
    peer.settle()
    assert peer.outbox.controls_waiting, "not everything behind it fits"
    assert not slot.request
    assert not slot.pending


def test_what_waits_for_a_peer_that_leaves_is_undelivered(peers: Make) -> None:
    peer = peers(limits())
    taken = peer.fill()
    peer.deliver(b"waits")
    peer.outbox.send_control(b"reply")
    peer.settle()
    peer.sock.close()
    peer.settle()
    assert peer.outbox.is_closed
    assert peer.replied == 1, "a client that waits for the reply must learn that it will not come"
    statistics = peer.outbox.statistics()
    assert (statistics.delivered, statistics.undelivered) == (taken, 2)
    peer.deliver(b"later")
    assert peer.outbox.statistics().undelivered == 3


def full_with_room(peers: Make, backlog: int) -> Peer:
    """With so many messages in its backlog, all of which its socket would take."""
    peer = peers(limits())
    peer.gives_turns = False
    taken = peer.fill()
    for number in range(1, backlog):  # `fill` has put one there
        peer.deliver(b"%d" % number)
    assert len(peer.read()) == taken >= backlog
    peer.settle()
    assert peer.room_reports == 1
    assert peer.read() == []
    return peer


def test_a_turn_is_bounded_and_asks_for_the_next_one(peers: Make) -> None:
    peer = full_with_room(peers, 4)
    units, more = peer.outbox.send_backlog(1)
    assert (len(peer.read()), more) == (1, True)
    units_of_all, more = peer.outbox.send_backlog(1_000)
    assert peer.read() == [b"1", b"2", b"3"]
    assert (units_of_all, more) == (3 * units, False)
    assert peer.outbox.is_flowing
    peer.settle()
    assert (peer.watches_room, peer.room_reports) == (False, 1)


def test_large_packets_make_short_turns(peers: Make) -> None:
    peer = full_with_room(peers, 2)
    one, _ = peer.outbox.send_backlog(1)
    peer.served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
    peer.deliver(bytes(3 * 4096))
    peer.outbox.send_backlog(1)
    large, _ = peer.outbox.send_backlog(1)
    assert large == one + 3


def test_an_outbox_closed_before_its_turn_needs_none(peers: Make) -> None:
    peer = full_with_room(peers, 3)
    peer.outbox.close()
    assert peer.outbox.send_backlog(1_000) == (0, False), "a turn may come all the same"
    assert not peer.outbox.is_flowing


def test_closing_counts_what_was_left(peers: Make) -> None:
    peer = peers(limits(messages=2))
    taken = peer.fill()
    for _ in range(3):
        peer.deliver(b"x")
    peer.settle()
    assert peer.watches_room
    peer.outbox.close()
    assert peer.read() == [b"fill"] * taken
    peer.settle()
    assert peer.room_reports == 1
    assert peer.read() == [], "nothing is sent any more"
    assert peer.outbox.statistics() == OutboxStatistics(taken + 4, taken, 2, 2, 0, 0)
    peer.outbox.close()
    assert peer.outbox.statistics().undelivered == 2


def test_closing_while_the_kernel_has_no_memory_sends_nothing(peers: Make) -> None:
    peer = peers(limits())
    sock = make_moody(peer, *[errno.ENOBUFS] * 3)
    peer.deliver(b"a")
    peer.outbox.close()
    left = sock.failures.copy()
    while peer.retries:
        peer.retry()
    assert sock.failures == left, "it was tried again"
    assert peer.read() == []


def test_what_there_is_no_time_for_waits(peers: Make) -> None:
    peer = peers(limits())
    make_moody(peer, *[errno.ETIME] * 2)
    peer.deliver(b"a", b"b")
    peer.outbox.send_control(b"reply")
    assert peer.outbox.statistics().backlog == 2
    assert not peer.watches_room, "its socket has room"
    peer.outbox.send_backlog(10)
    assert peer.waits_for_time == 2
    assert peer.read() == []
    peer.outbox.send_backlog(10)
    assert peer.read() == [b"a", b"b", b"reply"]
    assert peer.outbox.is_flowing


def test_a_policy_decides_about_what_there_is_no_time_for(peers: Make) -> None:
    peer = peers(limits())
    make_moody(peer, *[errno.ETIME] * 2)
    peer.outbox.wants_notices = True
    peer.outbox.choose(Soft.DISCARD)
    peer.deliver(b"a", b"b", b"c")
    assert peer.outbox.dropped == {"soft": 3}
    assert peer.waits_for_time == 1
    peer.outbox.send_backlog(10)
    assert peer.waits_for_time == 2
    peer.outbox.send_backlog(10)
    peer.deliver(b"d")
    assert peer.read() == [b"CMSG !/lost\x003", b"d"]


def test_an_error_that_no_peer_can_cause_is_not_hidden(peers: Make) -> None:
    peer = peers(limits())
    make_moody(peer, errno.EBADF)
    with pytest.raises(OSError, match="out of something"):
        peer.deliver(b"x")
