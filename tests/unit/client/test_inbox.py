"""The inbox against docs/protocol.md, "Notices", and against a model that is a plain list."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.client.inbox import Inbox
from sbus.client.message_queue import Lost, MessageQueue
from sbus.client.requests import WhoamiBarrier
from sbus.errors import BusError, Disconnected, ProtocolViolation
from sbus.protocol.codes import LAST_CODES
from sbus.protocol.packets import Message

Items = Message | Lost


def make_inbox(
    losses: Literal["raise", "report"] = "raise",
    *,
    messages_max: int = 100,
    bytes_max: int = 1000,
) -> Inbox[Items]:
    queue = MessageQueue[Items](losses=losses, messages_max=messages_max, bytes_max=bytes_max)
    return Inbox(WhoamiBarrier(), queue)


def feed(inbox: Inbox[Items], *packets: bytes) -> None:
    for packet in packets:
        inbox.feed(packet)


def items_of(inbox: Inbox[Items]) -> list[Items | str]:
    """All items, with what is raised between them."""
    items: list[Items | str] = []
    while True:
        try:
            item = inbox.take(inbox.own)
        except BusError as error:
            items.append(repr(error))
            if inbox.ended and not len(inbox.own):
                return items
        else:
            if item is None:
                return items
            items.append(item)


PACKETS = st.sampled_from(
    [
        *(b"MSG a\x001", b"MSG a\x00", b"MSG \x00x\0y", b"MSG !/cred/1/2/3/reply/x\0t\0", b"MSG "),
        *(
            b"CMSG !/lost\x004",
            b"CMSG !/error\0not-allowed no",
            b"CMSG !/cred/whoami\0!/cred/1/2/3",
        ),
        *(
            b"CMSG !/from\x001 2 3 4 5 MSG a\x002",
            b"MSG no end",
            b"MSG a",
            b"\0",
            b"MS",
            b"CMSG !/error\0kicked away",
        ),
    ]
)


class TestMessagesThatAreTakenInTogether:
    @given(st.lists(PACKETS, max_size=20), st.booleans())
    def test_come_out_as_one_by_one(self, packets: list[bytes], has_asked: bool) -> None:
        together, one_by_one = make_inbox("report"), make_inbox("report")
        if has_asked:
            together.replies.key = one_by_one.replies.key = b"!/cred/1/2/3/reply/x"
        feed(one_by_one, *packets)
        left = iter(packets)
        while (packet := together.feed_messages(left)) is not None:
            together.feed(packet)
        assert together.statistics() == one_by_one.statistics()
        together.own.check_invariants()
        assert items_of(together) == items_of(one_by_one)


class TestLosses:
    def test_at_the_same_gap_are_one(self) -> None:
        inbox = make_inbox("report")
        feed(inbox, b"CMSG !/lost\x003", b"CMSG !/lost\x004", b"MSG a\x00", b"CMSG !/lost\x00?")
        feed(inbox, b"CMSG !/lost\x005")
        assert inbox.take_many(inbox.own, 10) == [Lost(7), Message(b"a", b""), Lost(None)]
        assert inbox.statistics().messages_lost == 12
        assert inbox.statistics().gaps == 4

    @pytest.mark.parametrize("count", [b"some", b"", b"-1", b"1.5", b"9" * 5000])
    def test_that_make_no_sense_end_the_connection(self, count: bytes) -> None:
        inbox = make_inbox()
        feed(inbox, b"CMSG !/lost\x00" + count)
        with pytest.raises(ProtocolViolation, match="messages lost"):
            inbox.take(inbox.own)


class TestEnd:
    @pytest.mark.parametrize("code", sorted(LAST_CODES))
    def test_is_waited_for_when_its_reason_was_there_before(self, code: str) -> None:
        inbox = make_inbox()
        feed(inbox, b"CMSG !/error\0" + code.encode() + b" because")
        assert inbox.take(inbox.own) is None
        inbox.feed_end_of_connection()
        with pytest.raises(Disconnected, match=f"because .{code}"):
            inbox.take(inbox.own)

    @pytest.mark.parametrize("packet", [b"HELLO", b"MSG without NUL", b"SUB a", b"CMSG x"])
    def test_is_what_a_packet_brings_that_no_bus_sends(self, packet: bytes) -> None:
        inbox = make_inbox()
        feed(inbox, b"MSG a\x001", packet)
        assert inbox.take(inbox.own) == Message(b"a", b"1")
        with pytest.raises(ProtocolViolation):
            inbox.take(inbox.own)

    def test_that_came_first_stays(self) -> None:
        inbox = make_inbox()
        inbox.end(Disconnected, "the bus has gone")
        inbox.end(Disconnected, "and then we closed")
        with pytest.raises(Disconnected, match="gone"):
            inbox.take(inbox.own)

    def test_is_what_a_whoami_reply_brings_that_names_nobody(self) -> None:
        inbox = make_inbox()
        feed(inbox, b"CMSG !/cred/whoami\0you")
        with pytest.raises(ProtocolViolation, match="you"):
            inbox.take(inbox.own)


class TestBounds:
    def test_so_many_bytes_of_keys_and_payloads(self) -> None:
        inbox = make_inbox(bytes_max=10)
        feed(inbox, b"MSG abcd\0efghi")
        assert inbox.has_room
        feed(inbox, b"MSG a\x00")
        assert not inbox.has_room
        assert inbox.take_many(inbox.own, 5) == [Message(b"abcd", b"efghi"), Message(b"a", b"")]
        assert inbox.statistics().bytes == 0
        assert inbox.has_room

    def test_discarding_leaves_nothing(self) -> None:
        inbox = make_inbox("report")
        feed(inbox, b"MSG a\x001", b"CMSG !/lost\x001", b"CMSG !/error\0reserved no")
        inbox.discard()
        assert inbox.statistics().messages == inbox.statistics().bytes == 0
        assert inbox.take(inbox.own) is None


packets = st.one_of(
    st.tuples(st.just("message"), st.binary(max_size=5)),
    st.tuples(st.just("lost"), st.integers(0, 9)),
    st.tuples(st.just("take"), st.integers(1, 4)),
)


@given(st.lists(packets))
def test_any_history_equals_a_plain_list(history: list[tuple[str, bytes | int]]) -> None:
    """What comes out is what went in, adjacent losses summed, and nothing stays charged."""
    inbox = make_inbox("report", messages_max=10_000, bytes_max=10_000)
    expected: list[Items] = []
    taken: list[Items] = []
    waiting = 0
    for what, value in history:
        inbox.own.check_invariants()
        if what == "take":
            assert isinstance(value, int)
            got = inbox.take_many(inbox.own, value)
            assert len(got) == min(value, waiting)
            taken += got
            waiting -= len(got)
        elif what == "lost":
            assert isinstance(value, int)
            inbox.feed(b"CMSG !/lost\0%d" % value)
            last = expected[-1] if expected and waiting else None
            if isinstance(last, Lost):
                assert isinstance(last.count, int)
                expected[-1] = Lost(last.count + value)
            else:
                expected.append(Lost(value))
                waiting += 1
        else:
            assert isinstance(value, bytes)
            inbox.feed(b"MSG k\0" + value)
            expected.append(Message(b"k", value))
            waiting += 1
    taken += inbox.take_many(inbox.own, 10_000)
    assert taken == expected
    inbox.own.check_invariants()
    assert inbox.statistics().messages == inbox.statistics().bytes == 0
