"""What the bus tells of members, read as it was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.errors import ProtocolViolation
from sbus.limits import Limits
from sbus.protocol import presence
from sbus.protocol.keys import SLASH, check_pattern, is_reserved
from sbus.protocol.packets import ControlMessage, Message, parse_server_packet
from sbus.protocol.presence import Member, MemberChange

MEMBERS = st.builds(
    Member,
    uid=st.integers(0, 1 << 32),
    name=st.from_regex(rb"[A-Za-z0-9._:@+-]{1,64}", fullmatch=True),
    client=st.integers(1),
    gid=st.integers(0),
    pid=st.integers(0),
)


def payload_of(packet: bytes) -> bytes:
    control = parse_server_packet(packet)
    assert isinstance(control, ControlMessage)
    return control.payload


def change_of(packet: bytes) -> MemberChange:
    message = parse_server_packet(packet)
    assert isinstance(message, Message)
    return presence.parse_change(message)


@given(MEMBERS, st.sampled_from((None, "left", "gave-up", "kicked")))
def test_a_change_is_read_as_it_was_written(member: Member, reason: str | None) -> None:
    packet = member.join_message() if reason is None else member.leave_message(reason)
    assert change_of(packet) == MemberChange(member, reason)
    assert is_reserved(member.key, SLASH)
    check_pattern(member.key, SLASH, Limits())


@given(st.lists(MEMBERS, max_size=5))
def test_members_are_read_as_they_were_written(members: list[Member]) -> None:
    assert presence.parse_members(payload_of(presence.members_reply(members))) == (members, False)


def test_a_long_list_of_members_comes_in_pieces() -> None:
    everybody = [Member(1000, b"%064d" % number, number, 1, 1) for number in range(1_000)]
    found: list[Member] = []
    has_more = True
    while has_more:
        reply = presence.members_reply(everybody[len(found) :])
        assert len(reply) < presence.MEMBERS_BYTES_MAX + 200
        piece, has_more = presence.parse_members(payload_of(reply))
        found += piece
    assert found == everybody


@pytest.mark.parametrize("payload", [b"more", b"", b"end\n1 a 2 3", b"end\nx a 1 2 3"])
def test_a_list_of_members_that_no_bus_sends_is_a_violation(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        presence.parse_members(payload + b"\n")


@pytest.mark.parametrize(
    ("key", "payload"),
    [
        (b"!/presence/1/a", b"join 1 2"),
        (b"!/presence/1/a", b"leave 1 2 3"),
        (b"!/presence/1/a", b"join 1 2 3 left"),
        (b"!/presence/a", b"join 1 2 3"),
        (b"!/presence/x/a", b"join 1 2 3"),
    ],
)
def test_a_change_that_no_bus_tells_of_is_a_violation(key: bytes, payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        presence.parse_change(Message(key, payload))
