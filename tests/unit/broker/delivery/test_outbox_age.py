"""Messages that have waited for too long (docs/protocol.md, "A slow client"), over real sockets,
with a clock that the test sets."""

import socket
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.broker.delivery import bounded_backlog
from sbus.broker.delivery.backlog_changes import changes_since
from sbus.broker.delivery.tally import Tally
from sbus.broker.ipc.client_record import (
    BacklogRecord,
    ClientSnapshot,
    decode_snapshot,
    encode_snapshot,
)
from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft
from sbus.shared.accounts import BACKLOG_BYTES
from tests.unit.broker.delivery.outbox_peer import Peer, limits, open_peers, total

AGE_MS = 30
KEEPING_BYTES = 64 + 256
"""What a message takes of the user's account besides its length (`user_backlog_bytes_max`)."""
A, B, C = (b"MSG %b\0" % key for key in (b"a", b"bb", b"c"))
Make = Callable[..., Peer]


class Clock:
    """Milliseconds, as outboxes see them."""

    def __init__(self) -> None:
        self.now_ms = 1_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(bounded_backlog, "_now_ms", lambda: clock.now_ms)
    return clock


@pytest.fixture
def peers() -> Iterator[Make]:
    with open_peers() as make:
        yield make


def full_peer(make: Make, order: BacklogOrder, messages: int = 100) -> Peer:
    """With a full socket, and messages that may wait for 30 ms."""
    peer = make(limits(messages=messages), flood_control=FloodControl(order=order))
    peer.outbox.wants_notices = True
    peer.outbox.choose(AGE_MS)
    peer.fill_exactly()
    return peer


@pytest.mark.parametrize("order", BacklogOrder)
def test_a_receipt_says_that_a_message_waits_in_the_place_of_one_that_was_too_old(
    peers: Make, clock: Clock, order: BacklogOrder
) -> None:
    peer = full_peer(peers, order, messages=2)
    peer.deliver(A, B)
    clock.now_ms += AGE_MS + 1
    tally = Tally([peer.outbox])
    peer.deliver(C)
    assert peer.outbox.dropped["age"]
    assert tally.counts() == (0, 1, 0)


def test_a_socket_is_not_enlarged_for_messages_that_become_too_old(
    peers: Make, clock: Clock
) -> None:
    peer = full_peer(peers, BacklogOrder.QUEUE)
    peer.larger_buffer_bytes = 1_000_000
    peer.deliver(A)
    assert peer.outbox.statistics().backlog == 1


@pytest.mark.parametrize("order", BacklogOrder)
def test_time_goes_on_at_another_bus(peers: Make, clock: Clock, order: BacklogOrder) -> None:
    """Which reads what waits in two pieces."""
    here, there = full_peer(peers, order), peers(limits())
    there.outbox.wants_notices = True
    there.outbox.leave()
    here.deliver(A, B)
    first = here.outbox.record_backlog()
    there.outbox.follow_backlog(sent_over(first))
    clock.now_ms += 20
    here.deliver(C, A)
    by_key = order is BacklogOrder.LATEST
    changes = changes_since(first, here.outbox.record_backlog(), by_key=by_key)
    there.outbox.follow_backlog(sent_over(changes))
    there.outbox.arrive(here.outbox.flood_control)
    assert there.account.use(BACKLOG_BYTES) == len(A + B + C + b"" if by_key else A + B + C + A) + (
        KEEPING_BYTES * (3 if by_key else 4)
    )
    clock.now_ms += 20
    there.outbox.resume_backlog()
    arrived = [packet for packet in there.read_all() if packet.startswith(b"MSG")]
    assert sorted(arrived) == sorted([A, C])
    assert there.outbox.dropped == {"age": 1 if by_key else 2}
    assert there.account.use(BACKLOG_BYTES) == 0


def sent_over(record: BacklogRecord) -> BacklogRecord:
    """As the other bus reads it."""
    snapshot = ClientSnapshot(client=1, backlog=record)
    return decode_snapshot(encode_snapshot(snapshot)).backlog


class Recorder(socket.socket):
    """A socket that notes when each message was sent."""

    clock: Clock
    sent: dict[bytes, int]

    def send(self, data: bytes, flags: int = 0) -> int:  # type: ignore[override]
        size = super().send(data, flags)
        self.sent[bytes(data)] = self.clock.now_ms
        return size


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(1, 12)),
        st.tuples(st.just("wait"), st.integers(1, 20)),
        st.tuples(st.just("read"), st.integers(1, 100)),
        st.tuples(st.just("reply"), st.just(0)),
        st.tuples(
            st.just("choose"),
            st.sampled_from([*BacklogOrder, *Soft, Hard.DISCARD, 0, 1, 10, 25]),
        ),
    ),
    max_size=40,
)


@given(ACTIONS, st.integers(2, 12))
def test_nothing_is_sent_that_is_too_old(actions: list[tuple[str, object]], messages: int) -> None:
    """Against the times at which messages came and were sent, and the ledger."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch, open_peers() as make:
        patch.setattr(bounded_backlog, "_now_ms", lambda: clock.now_ms)
        peer = make(limits(messages=messages))
        sock = Recorder(fileno=peer.served.detach())
        sock.clock, sock.sent = clock, {}
        peer.serve(sock, limits(messages=messages))
        peer.outbox.wants_notices = True
        came: dict[bytes, int] = {}
        read: list[bytes] = []
        for what, value in actions:
            if what == "deliver":
                assert isinstance(value, int)
                for _ in range(value):
                    packet = b"MSG %d\0%d" % (len(came) % 3, len(came)) + bytes(300)
                    came[packet] = clock.now_ms
                    peer.deliver(packet)
            elif what == "wait":
                assert isinstance(value, int)
                clock.now_ms += value
            elif what == "reply" and not peer.outbox.is_closed:
                peer.outbox.send_control(b"reply")
            elif what == "choose":
                since_ms = clock.now_ms if not peer.outbox.flood_control.age_ms_max else 0
                peer.outbox.choose(value)  # type: ignore[arg-type]
                if value in (1, 10, 25) and since_ms:  # what is there counts from now
                    came = {it: max(at, since_ms) for it, at in came.items()}
                sock.sent.clear()
            elif what == "read":
                assert isinstance(value, int)
                read += peer.read_some(value)
                peer.settle()
            age_ms_max = peer.outbox.flood_control.age_ms_max
            if age_ms_max:
                late = [
                    it for it, at in sock.sent.items() if it in came and at > came[it] + age_ms_max
                ]
                assert not late
            statistics = peer.outbox.statistics()
            assert statistics.accepted == len(came) == total(statistics)
            peer.outbox._backlog.check_invariants()
            assert peer.account.use(BACKLOG_BYTES) == (
                statistics.backlog_bytes
                + 64 * statistics.backlog
                + peer.outbox._backlog.overhead_bytes
            )
        read += peer.read_all()
        statistics = peer.outbox.statistics()
        told = sum(int(packet[12:]) for packet in read if packet.startswith(b"CMSG !/lost\0"))
        assert told == statistics.dropped or peer.outbox.fault is not None
        assert statistics.delivered == sum(packet in came for packet in read)
        peer.close()
        assert peer.account.use(BACKLOG_BYTES) == 0
