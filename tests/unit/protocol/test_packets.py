"""Packets: the specification's regular expressions as the oracle, round trips, malformed ones."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.errors import ProtocolViolation
from sbus.protocol.keys import DOT, SLASH, Dialect
from sbus.protocol.packets import (
    Control,
    ControlMessage,
    Message,
    Publish,
    Subscribe,
    Unsubscribe,
    encode_control,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
    parse_client_packet,
    parse_server_packet,
)

PUBLISH = re.compile(rb"MSG ([^\x00]*)\x00(.*)", re.DOTALL)
CONTROL_FROM_SERVER = re.compile(rb"CMSG ([^\x00]*)(\x00(.*))", re.DOTALL)

dialects = st.sampled_from([SLASH, DOT])
keys = st.binary(max_size=20).map(lambda text: text.replace(b"\0", b"/"))
payloads = st.binary(max_size=40)
pieces = st.sampled_from(
    [b"SUB", b"UN", b"MSG", b"C", b" ", b"\0", b"\n", b"a/b", b"*", b"\xff", b"sub "]
)
packets = st.one_of(st.lists(pieces, max_size=7).map(b"".join), st.binary(max_size=20))


@given(packets)
def test_server_packets_are_what_the_specification_says(packet: bytes) -> None:
    if found := PUBLISH.fullmatch(packet):
        assert parse_server_packet(packet) == Message(found[1], found[2])
    elif found := CONTROL_FROM_SERVER.fullmatch(packet):
        assert parse_server_packet(packet) == ControlMessage(found[1], found[3])
    else:
        with pytest.raises(ProtocolViolation):
            parse_server_packet(packet)


@given(keys, payloads, dialects)
def test_what_is_encoded_is_parsed_back(key: bytes, payload: bytes, dialect: Dialect) -> None:
    assert parse_client_packet(encode_subscribe(key), dialect) == Subscribe(key)
    assert parse_client_packet(encode_unsubscribe(key), dialect) == Unsubscribe(key)
    message = encode_publish(key, payload)
    assert parse_client_packet(message, dialect) == Publish(key, message)
    assert parse_server_packet(message) == Message(key, payload)


@given(keys.filter(lambda key: key != b"!/from"), payloads)
def test_control_messages_are_parsed_back(key: bytes, payload: bytes) -> None:
    assert parse_client_packet(encode_control(key), SLASH) == Control(key, b"")
    assert parse_client_packet(encode_control(key, payload), SLASH) == Control(key, payload)
    assert parse_server_packet(encode_control(key, payload)) == ControlMessage(key, payload)


@pytest.mark.parametrize(
    "encode",
    [
        encode_subscribe,
        encode_unsubscribe,
        encode_control,
        lambda key: encode_control(key, b"payload"),
        lambda key: encode_publish(key, b"payload"),
    ],
)
@pytest.mark.parametrize("key", [b"\0", b"a\0", b"\0a", b"a\0b"])
def test_a_key_with_a_nul_cannot_be_encoded(encode: Callable[[bytes], bytes], key: bytes) -> None:
    with pytest.raises(ValueError, match="NUL"):
        encode(key)
