"""Names, and the packets about them, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.errors import ProtocolViolation, Refusal
from sbus.limits import Limits
from sbus.protocol import presence
from sbus.protocol.keys import SLASH, check_pattern, is_reserved
from sbus.protocol.packets import ControlMessage, Message, parse_server_packet
from sbus.protocol.presence import Member, MemberChange
from sbus.protocol.presence_keys import NamePattern, parse_name_pattern

ANN = Member(1000, b"ann", 7, 100, 4711)
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


def test_what_tells_of_a_member_is_written_as_documented() -> None:
    assert ANN.join_message() == b"MSG !/presence/1000/ann\0join 7 100 4711"
    assert ANN.leave_message("left") == b"MSG !/presence/1000/ann\0leave 7 100 4711 left"
    assert presence.join_reply(b"ann\0key\0payload") == b"CMSG !/join\0ann"
    fault = Refusal("name-taken", "it is taken")
    assert presence.join_reply(b"ann", fault) == b"CMSG !/join\0ann\0name-taken it is taken"
    assert presence.leave_reply(b"ann") == b"CMSG !/leave\0ann"
    assert presence.members_reply([ANN]) == b"CMSG !/members\0end\n1000 ann 7 100 4711"
    assert presence.members_refused(fault) == b"CMSG !/members\0refused name-taken it is taken"


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


@pytest.mark.parametrize(
    ("payload", "name", "will"),
    [
        (b"ann", b"ann", b""),
        (b"ann\0\0", b"ann", b"\0"),
        (b"ann\0key\0", b"ann", b"key\0"),
        (b"ann\0key\0a\0b", b"ann", b"key\0a\0b"),
    ],
)
def test_a_join_has_a_name_and_maybe_a_will(payload: bytes, name: bytes, will: bytes) -> None:
    assert presence.parse_join(payload) == (name, will)


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


@pytest.mark.parametrize(
    ("pattern", "meaning"),
    [
        (b"*/*", NamePattern(None, b"", True)),
        (b"0/a", NamePattern(0, b"a", False)),
        (b"1000/a-*", NamePattern(1000, b"a-", True)),
        (b"*/a", NamePattern(None, b"a", False)),
    ],
)
def test_patterns_of_names(pattern: bytes, meaning: NamePattern) -> None:
    assert parse_name_pattern(pattern) == meaning
