"""What an outbox does for each choice of flood control, over real sockets.

What must happen is derived here from the specification (docs/protocol.md, "A slow client" and
"Notices"), with `block` as `discard`, because nobody may be held back in these tests; but for the
last one, in which there are publishers of the client's own user, that may, and of another's.
"""

import errno
from collections.abc import Iterator
from typing import Protocol

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.broker.delivery.backlog import Backlog
from sbus.limits import Limits
from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft
from sbus.shared.accounts import BACKLOG_BYTES, DROPPED
from sbus.shared.shared_memory import SharedMemory
from tests.unit.broker.delivery.outbox_peer import (
    UNITS_PER_TURN,
    Peer,
    limits,
    make_moody,
    open_peers,
    total,
)
from tests.unit.shared.memories import open_memory

KEEPING_BYTES = 64
"""What a message takes of the user's account besides its length (`user_backlog_bytes_max`)."""
INDEX_BYTES = 192
"""What it takes more to have a message sorted by size."""


class Make(Protocol):
    def __call__(self, limits: Limits, *, flood_control: FloodControl = ...) -> Peer: ...


@pytest.fixture
def peers() -> Iterator[Make]:
    with open_peers() as make:
        yield make


def full_peer(
    make: Make,
    soft: Soft,
    hard: Hard,
    order: BacklogOrder,
    messages: int = 3,
) -> Peer:
    """A peer with a full socket and no backlog, which is told of losses."""
    control = FloodControl(soft=soft, hard=hard, order=order)
    peer = make(limits(messages=messages), flood_control=control)
    peer.outbox.wants_notices = True
    peer.fill_exactly()
    return peer


def test_no_send_is_tried_for_a_message_that_is_dropped_as_the_one_before(peers: Make) -> None:
    peer = peers(limits(), flood_control=FloodControl(soft=Soft.DISCARD))
    sock = make_moody(peer, errno.EAGAIN, errno.EAGAIN, errno.EAGAIN)
    peer.deliver(*[b"x"] * 1_000)
    assert len(sock.failures) == 2
    assert peer.outbox.statistics().dropped == 1_000


def test_an_outbox_that_is_drained_before_room_is_reported_watches_for_none(peers: Make) -> None:
    """A message finds room before the poller reports any, and then the socket is full again."""
    peer = full_peer(peers, Soft.DISCARD, Hard.DISCARD, BacklogOrder.QUEUE)
    for number in range(3):
        peer.outbox.send_control(b"reply")
        peer.settle()
        assert peer.watches_room
        for _ in range(2):
            peer.sock.recv(100)
        peer.deliver(b"%d" % number)
        assert peer.outbox.is_flowing
        assert not peer.watches_room
    assert peer.room_reports == 0
    assert peer.read_all() == [
        *[b"fill"] * (peer.taken - 6),
        *(b"reply", b"0", b"reply", b"1", b"reply", b"2"),
    ]


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.ENOMEM])
@pytest.mark.parametrize("soft", Soft)
def test_a_kernel_without_memory_is_nobodys_fault(peers: Make, soft: Soft, code: int) -> None:
    peer = peers(limits(), flood_control=FloodControl(soft=soft))
    make_moody(peer, *[code] * 3)
    for packet in (b"a", b"b", b"c"):
        peer.deliver(packet)
    assert (peer.faults, peer.outbox.statistics().dropped) == (0, 0)
    while peer.retries:
        assert not peer.watches_room, "its socket has room"
        peer.retry()
    assert peer.read() == [b"a", b"b", b"c"]
    assert peer.outbox.is_flowing


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["burst", "burst of others"]), st.integers(1, 15)),
        st.tuples(st.just("reply"), st.just(0)),
        st.tuples(st.just("read"), st.integers(1, 10)),
        st.tuples(st.just("settle"), st.just(0)),
        st.tuples(st.just("choose"), st.sampled_from([*Soft, *Hard, *BacklogOrder])),
    ),
    max_size=40,
)


@settings(max_examples=2 * settings().max_examples)
@given(
    ACTIONS,
    st.builds(
        Limits,
        backlog_messages_max=st.integers(0, 8),
        backlog_bytes_max=st.integers(50, 400),
        log_bytes=st.integers(1, 600),
        user_backlog_bytes_max=st.sampled_from([0, 1_000, 100_000]),
        user_held_seconds_max=st.sampled_from([0.0, 1e6]),
    ),
)
def test_the_ledger_is_exact_whatever_is_chosen(
    actions: list[tuple[str, int | Soft | Hard | BacklogOrder]], given: Limits
) -> None:
    with open_memory(1) as memory:
        memory.lock.open()
        follow_the_ledger(actions, given, memory)


def follow_the_ledger(
    actions: list[tuple[str, int | Soft | Hard | BacklogOrder]], given: Limits, memory: SharedMemory
) -> None:
    peer = Peer(given)
    peer.let_block(memory, given)
    peer.outbox.wants_notices = True
    accepted: list[bytes] = []
    replies: list[bytes] = []
    read: list[bytes] = []
    for what, value in actions:
        if isinstance(value, Soft | Hard | BacklogOrder):
            peer.outbox.choose(value)
        elif what.startswith("burst"):
            is_own_users = what == "burst"
            for _ in range(value):
                number = len(accepted)
                accepted.append(b"MSG %d\0%d " % (number % 5 % 3, number) + bytes(number * 7 % 40))
                peer.deliver(accepted[-1], is_own_users=is_own_users)
        elif what == "reply" and not peer.outbox.is_closed:
            replies.append(b"reply %d" % len(accepted))
            peer.outbox.send_control(replies[-1])
        elif what == "read":
            read += peer.read_some(value)
        else:
            peer.settle()
        check(peer, given, len(accepted), memory)
    read += peer.read_all()
    check(peer, given, len(accepted), memory)
    compare(accepted, replies, read, peer)
    peer.close()
    assert peer.account.use(BACKLOG_BYTES) == 0


def check(peer: Peer, given: Limits, accepted: int, memory: SharedMemory) -> None:
    """What is documented to hold at any time."""
    outbox, statistics = peer.outbox, peer.outbox.statistics()
    backlog = outbox._backlog
    backlog.check_invariants()
    assert statistics.accepted == accepted == total(statistics)
    assert statistics.backlog == backlog.messages
    assert statistics.backlog_bytes == backlog.bytes
    assert statistics.backlog <= given.backlog_messages_max + backlog._overshoot
    overshoot_bytes = given.log_bytes if given.user_held_seconds_max else 0
    assert backlog.bytes <= given.backlog_bytes_max + overshoot_bytes
    assert not (outbox.is_flowing and backlog)
    assert not (backlog and not peer.watches_room)
    assert not (outbox.is_flowing and peer.watches_room)
    assert (outbox.fault is not None) == outbox.is_closed == bool(peer.faults)

    taken = peer.account.use(BACKLOG_BYTES)
    kept_bytes = KEEPING_BYTES * backlog.messages + index_bytes(backlog)
    assert taken == backlog.bytes + kept_bytes
    assert taken <= given.user_backlog_bytes_max + overshoot_bytes
    assert peer.account.use(DROPPED) == statistics.dropped
    assert not peer.quota_reports or given.user_backlog_bytes_max < 100_000

    held = peer.backpressure.is_stalled
    with memory.lock:
        assert peer.stalls.any_stalled() == held
    if held:
        assert given.user_held_seconds_max, "nobody has time for that"
        assert backlog.messages, "held for ever"
        assert outbox.flood_control.soft is Soft.BLOCK or (
            (outbox.flood_control.soft, outbox.flood_control.hard) == (Soft.QUEUE, Hard.BLOCK)
        )
        if outbox.flood_control.soft is Soft.QUEUE:
            assert (
                backlog._overshoot
                or 2 * backlog.messages > given.backlog_messages_max
                or 2 * backlog.bytes > given.backlog_bytes_max
            )


def index_bytes(backlog: Backlog) -> int:
    sections = backlog._sections
    indexed = sum(len(section.sorted) + len(section.newest) for section in sections)
    return INDEX_BYTES * indexed + sum(len(key) for section in sections for key in section.newest)


def compare(accepted: list[bytes], replies: list[bytes], read: list[bytes], peer: Peer) -> None:
    """Each message is read once at most, on its side of each reply, and all others are counted."""
    messages = [packet for packet in read if not packet.startswith((b"CMSG", b"reply"))]
    numbers = {packet: number for number, packet in enumerate(accepted)}
    assert len(set(messages)) == len(messages)
    assert set(messages) <= numbers.keys()
    got_replies = [packet for packet in read if packet.startswith(b"reply")]
    told = sum(int(packet[12:]) for packet in read if packet.startswith(b"CMSG !/lost\0"))
    statistics = peer.outbox.statistics()
    assert statistics.delivered == len(messages)
    assert told <= statistics.dropped
    if peer.outbox.fault is None:
        assert got_replies == replies
        assert (told, statistics.undelivered) == (statistics.dropped, 0)
    for reply in got_replies:
        at = read.index(reply)
        before = int(reply[6:])
        assert all(numbers[packet] < before for packet in read[:at] if packet in numbers)
        assert all(numbers[packet] >= before for packet in read[at:] if packet in numbers)


def test_a_backlog_is_sorted_in_turns_that_pay_for_it(peers: Make) -> None:
    peer = full_peer(peers, Soft.QUEUE, Hard.DISCARD, BacklogOrder.QUEUE, messages=1_000)
    peer.deliver(*[bytes(1 + number % 10) for number in range(1_000)])
    before = peer.account.use(BACKLOG_BYTES)
    peer.outbox.choose(BacklogOrder.RANDOM)
    assert peer.account.use(BACKLOG_BYTES) == before, "nothing is sorted yet"
    assert len(peer.read()) == peer.taken
    turns = 0
    while not (received := peer.read()):
        cost, has_more = peer.outbox.send_backlog(UNITS_PER_TURN)
        assert cost <= UNITS_PER_TURN + 1
        assert has_more
        turns += 1
    assert turns >= 1_000 / (2 * UNITS_PER_TURN)
    assert peer.account.use(BACKLOG_BYTES) > before + INDEX_BYTES * 900
    sizes = [len(packet) for packet in received + peer.read_all()]
    assert sizes == sorted([1 + number % 10 for number in range(1_000)], reverse=True)


def test_a_backlog_is_sorted_as_far_as_the_account_has_room(peers: Make) -> None:
    given = msgspec.structs.replace(limits(messages=100), user_backlog_bytes_max=20_000)
    control = FloodControl(order=BacklogOrder.RANDOM)
    peer = peers(given, flood_control=control)
    peer.fill_exactly()
    peer.deliver(*[b"x" * number for number in range(1, 101)])
    assert peer.outbox.statistics().backlog == 90
    received = peer.read_all()[peer.taken :]
    assert sorted(received) == [b"x" * number for number in range(1, 91)]
    assert peer.account.use(BACKLOG_BYTES) == 0
