"""An outbox that holds publishers back: when it says so, until when, and what it takes meanwhile.

Expectations follow docs/protocol.md, "A slow client", and the theory on top of `outbox.py`: the
next publisher is held back; messages on their way already are kept, up to the size of the log.
"""

from collections.abc import Iterator
from typing import Protocol, cast

import msgspec
import pytest

from sbus.limits import Limits
from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft
from sbus.shared.accounts import BACKLOG_BYTES
from sbus.shared.client_slots import ClientSlot
from sbus.shared.shared_memory import SharedMemory
from tests.unit.broker.delivery.outbox_peer import (
    UNITS_PER_TURN,
    Peer,
    limits,
    open_peers,
    total,
)
from tests.unit.shared.memories import open_memory

KEEPING_BYTES = 64
"""What a message takes of the user's account besides its length (`user_backlog_bytes_max`)."""
INDEX_BYTES = 192
"""And to find it by its key, besides the key."""
SOFT_BLOCK = FloodControl(soft=Soft.BLOCK, hard=Hard.DISCARD, order=BacklogOrder.QUEUE)
HARD_BLOCK = FloodControl(soft=Soft.QUEUE, hard=Hard.BLOCK, order=BacklogOrder.QUEUE)
BOTH = [SOFT_BLOCK, HARD_BLOCK]
NAMES = ["soft", "hard"]


class Make(Protocol):
    def __call__(self, limits: Limits, *, flood_control: FloodControl = ...) -> Peer: ...


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with open_memory(1) as opened:
        opened.lock.open()
        yield opened


@pytest.fixture
def peers(memory: SharedMemory) -> Iterator[Make]:
    """Closed before the memory, because a peer that holds publishers releases them there."""
    with open_peers() as make:
        yield make


def full_peer(
    make: Make, memory: SharedMemory, control: FloodControl, given: Limits | None = None
) -> Peer:
    """A peer with a full socket and no backlog, with notices, that may hold publishers."""
    given = given or limits(messages=3)
    peer = make(given, flood_control=control)
    peer.let_block(memory, given)
    peer.outbox.wants_notices = True
    peer.fill_exactly()
    assert not peer.backpressure.is_stalled
    return peer


@pytest.mark.parametrize("given", [limits(messages=60), limits(size=600)], ids=["60", "600 bytes"])
def test_with_hard_block_a_backlog_that_overflows_holds_until_half_of_it_is_free(
    peers: Make, memory: SharedMemory, given: Limits
) -> None:
    peer = full_peer(peers, memory, HARD_BLOCK, given)
    sent = [b"%010d" % number for number in range(62)]
    peer.deliver(*sent[:60])
    assert not peer.backpressure.is_stalled, "the backlog had room"
    peer.deliver(*sent[60:])
    assert peer.backpressure.is_stalled
    held = drain(peer)
    assert all(stalled == (backlog > 30) for backlog, stalled in held)
    assert {stalled for _, stalled in held} == {True, False}
    assert peer.read_all() == sent[-2:], "only what the socket has taken is left"


def test_messages_that_others_replace_make_room_before_any_is_sent(
    peers: Make, memory: SharedMemory
) -> None:
    """Also a successor of the worker would not count them as lost."""
    bound = 2 * UNITS_PER_TURN
    peer = full_peer(peers, memory, HARD_BLOCK, limits(messages=bound))
    slot = Slot()
    peer.outbox.use_slot(cast(ClientSlot, slot))
    peer.deliver(*[b"MSG a\0"] * (bound + 1))
    assert (slot.waiting, peer.backpressure.is_stalled) == (bound + 1, True)
    peer.outbox.choose(BacklogOrder.LATEST)
    peer.outbox.send_backlog(UNITS_PER_TURN)
    assert peer.outbox.statistics().replaced == bound - 1
    assert (slot.waiting, peer.backpressure.is_stalled) == (2, False)


class Slot:
    """What a successor of the worker would know."""

    at = waiting = 0


def drain(peer: Peer) -> list[tuple[int, bool]]:
    """Read until nothing waits; how many messages waited, and whether it stalled then."""
    held = []
    while backlog := peer.outbox.statistics().backlog:
        held.append((backlog, peer.backpressure.is_stalled))
        peer.read()
        peer.settle()
    return held


@pytest.mark.parametrize("control", BOTH, ids=NAMES)
def test_without_held_time_block_is_discard_and_that_is_reported(
    peers: Make, memory: SharedMemory, control: FloodControl
) -> None:
    given = msgspec.structs.replace(limits(messages=0), user_held_seconds_max=0.0)
    peer = full_peer(peers, memory, control, given)
    peer.deliver(b"a", b"b")
    assert not peer.backpressure.is_stalled
    assert peer.outbox.statistics().dropped == 2
    assert peer.spent_reports == 2


@pytest.mark.parametrize("control", BOTH, ids=NAMES)
def test_what_is_on_its_way_is_kept_up_to_the_size_of_the_log(
    peers: Make, memory: SharedMemory, control: FloodControl
) -> None:
    log_bytes, backlog_bytes = 4096, 100
    given = Limits(backlog_messages_max=0, backlog_bytes_max=backlog_bytes, log_bytes=log_bytes)
    peer = full_peer(peers, memory, control, given)
    peer.deliver(*[b"x" * 64] * (log_bytes // 64))
    assert peer.outbox.statistics().dropped == 0
    peer.deliver(*[b"x" * 64] * 10)
    statistics = peer.outbox.statistics()
    assert statistics.backlog_bytes <= backlog_bytes + log_bytes
    assert statistics.dropped == 10 - (backlog_bytes // 64)
    assert total(statistics) == statistics.accepted


@pytest.mark.parametrize("control", BOTH, ids=NAMES)
@pytest.mark.parametrize("order", BacklogOrder)
def test_a_closed_outbox_holds_nobody_and_takes_nothing_of_the_account(
    peers: Make, memory: SharedMemory, control: FloodControl, order: BacklogOrder
) -> None:
    control = msgspec.structs.replace(control, order=order)
    peer = full_peer(peers, memory, control, limits(messages=1))
    packets = [b"MSG %b\0" % key for key in (b"a", b"bb", b"ccc")]
    peer.deliver(*packets)
    by_key_bytes = 3 * INDEX_BYTES + 6 if order is BacklogOrder.LATEST else 0
    waiting_bytes = sum(map(len, packets)) + 3 * KEEPING_BYTES + by_key_bytes
    assert peer.account.use(BACKLOG_BYTES) == waiting_bytes
    peer.outbox.close()
    assert not peer.backpressure.is_stalled
    assert peer.account.use(BACKLOG_BYTES) == 0
    peer.deliver(b"too late")
    assert not peer.backpressure.is_stalled
    statistics = peer.outbox.statistics()
    assert (statistics.undelivered, statistics.backlog) == (4, 0)
    assert total(statistics) == statistics.accepted
