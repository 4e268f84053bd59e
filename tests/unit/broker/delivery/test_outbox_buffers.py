"""The outbox of a client whose send buffer can be enlarged."""

from collections.abc import Callable, Iterator

import pytest

from sbus.protocol.controls import BacklogOrder, FloodControl, Soft
from tests.unit.broker.delivery.outbox_peer import Peer, limits, open_peers

Make = Callable[..., Peer]


@pytest.fixture
def peers() -> Iterator[Make]:
    with open_peers() as make:
        yield make


@pytest.mark.parametrize("soft", list(Soft))
def test_a_full_socket_gets_a_larger_buffer_before_any_policy_decides(
    peers: Make, soft: Soft
) -> None:
    peer = peers(limits(), flood_control=FloodControl(soft=soft))
    peer.larger_buffer_bytes = 100_000
    messages = [b"%d" % number for number in range(50)]
    peer.deliver(*messages)
    assert peer.larger_buffer_bytes == 0, "the small one was not full"
    assert peer.outbox.is_flowing
    assert peer.read() == messages


@pytest.mark.parametrize("soft", list(Soft))
def test_messages_that_may_wait_do_so_where_newer_ones_can_replace_them(
    peers: Make, soft: Soft
) -> None:
    control = FloodControl(soft=soft, order=BacklogOrder.LATEST)
    peer = peers(limits(messages=50), flood_control=control)
    peer.larger_buffer_bytes = 100_000
    peer.deliver(*[b"MSG %d\0" % number for number in range(50)])
    assert (peer.larger_buffer_bytes > 0) == (soft is Soft.QUEUE)
    assert peer.outbox.statistics().dropped == 0


def test_a_packet_larger_than_the_buffer_waits_until_a_larger_one_can_be_had(peers: Make) -> None:
    peer = peers(limits(), flood_control=FloodControl(soft=Soft.ERROR))
    large = bytes(40_000)
    peer.deliver(large, b"behind it")
    peer.outbox.send_backlog(1_000)
    assert peer.retries
    assert not peer.watches_room, "there is room, but not for it"
    assert not peer.faults
    assert peer.read() == []
    peer.larger_buffer_bytes = 100_000
    while peer.outbox.send_backlog(1_000)[1]:
        pass
    assert peer.outbox.is_flowing
    assert peer.sock.recv(100_000) == large
    assert peer.read() == [b"behind it"]


def test_a_reply_gets_a_larger_buffer_too(peers: Make) -> None:
    peer = peers(limits())
    peer.larger_buffer_bytes = 100_000
    replies = [b"%d" % number for number in range(50)]
    for reply in replies:
        peer.outbox.send_control(reply)
    assert not peer.outbox.controls_waiting
    assert peer.read() == replies
