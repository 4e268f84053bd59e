"""D-Bus messages, byte by byte as the D-Bus specification has them."""

import struct

import pytest

from sbus.bench.peers.dbus_controller import add_listener, marshal, split


@pytest.mark.parametrize(
    ("signature", "types"),
    [("", []), ("yu", ["y", "u"]), ("a(us)t", ["a(us)", "t"]), ("aau(a(b)v)", ["aau", "(a(b)v)"])],
)
def test_a_signature_is_split_into_complete_types(signature: str, types: list[str]) -> None:
    assert split(signature) == types


@pytest.mark.parametrize(
    ("signature", "values", "expected"),
    [
        ("yu", (1, 2), b"\1\0\0\0\2\0\0\0"),
        ("s", ("ab",), b"\2\0\0\0ab\0"),
        ("g", ("u",), b"\1u\0"),
        ("yt", (1, 2), b"\1" + bytes(7) + b"\2" + bytes(7)),
        ("v", (("u", 7),), b"\1u\0\0\7\0\0\0"),
        ("at", ([],), bytes(8)),
        ("a(y)", ([(1,), (2,)],), b"\x09\0\0\0" + bytes(4) + b"\1" + bytes(7) + b"\2"),
    ],
)
def test_values_are_aligned_and_arrays_have_their_length(
    signature: str, values: tuple[object, ...], expected: bytes
) -> None:
    out = bytearray()
    marshal(out, signature, values)
    assert bytes(out) == expected


def test_the_head_of_the_call_tells_the_length_of_its_body() -> None:
    message = add_listener()
    order, kind, flags, version, body_bytes, serial, fields_bytes = struct.unpack_from(
        "<BBBBIII", message
    )
    assert (chr(order), kind, flags, version, serial) == ("l", 1, 0, 1, 1)
    assert len(message) == 16 + (fields_bytes + 7) // 8 * 8 + body_bytes
