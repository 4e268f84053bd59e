"""Addresses: every kind, every way of getting one wrong, and there and back again."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.errors import AddressError
from sbus.unix.address import (
    AbstractAddress,
    FdAddress,
    PathAddress,
    RandomAbstractAddress,
    parse_address,
)

ABSTRACT = "/dev/unix/abstract"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/run/sbus.socket", PathAddress("/run/sbus.socket")),
        ("bus", PathAddress("bus")),
        ("/dev/unix/abstracted", PathAddress("/dev/unix/abstracted")),
        ("/dev/fd", PathAddress("/dev/fd")),
        ("/dev/fd/0", FdAddress(0)),
        ("/dev/fd/17", FdAddress(17)),
        ("/dev/fd/2147483647", FdAddress(2**31 - 1)),
        (ABSTRACT, RandomAbstractAddress()),
        (ABSTRACT + "/00", AbstractAddress(bytes(108))),
        (ABSTRACT + "/0061fF", AbstractAddress(b"\0a\xff" + bytes(105))),
        (ABSTRACT + "/00" + "AB" * 107, AbstractAddress(b"\0" + b"\xab" * 107)),
    ],
)
def test_parses(text: str, expected: object) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("/" + "x" * 107, "108 bytes are too long"),
        ("/" + "é" * 54, "109 bytes are too long"),
        ("/dev/fd/", "not the number"),
        ("/dev/fd/x", "not the number"),
        ("/dev/fd/-1", "not the number"),
        ("/dev/fd/+1", "not the number"),
        ("/dev/fd/1_0", "not the number"),
        ("/dev/fd/3/", "not the number"),
        ("/dev/fd/²", "not the number"),
        ("/dev/fd/2147483648", "not the number"),
        ("/dev/fd/" + "9" * 5000, "not the number"),
        (ABSTRACT + "/", "begins with the byte 00"),
        (ABSTRACT + "/6162", "begins with the byte 00"),
        (ABSTRACT + "/006", "odd number of hexadecimal digits"),
        (ABSTRACT + "/00zz", "only hexadecimal digits"),
        (ABSTRACT + "/00 61", "only hexadecimal digits"),
        (ABSTRACT + "/0061\n", "only hexadecimal digits"),
        (ABSTRACT + "/00٣٣", "only hexadecimal digits"),
        (ABSTRACT + "/" + "00" * 109, "109 bytes are too long"),
    ],
)
def test_rejects_in_one_printable_line(text: str, complaint: str) -> None:
    with pytest.raises(AddressError) as refused:
        parse_address(text)
    assert complaint in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


def test_longest_path_is_what_the_kernel_takes() -> None:
    longest = "/" + "x" * 106
    assert parse_address(longest).sockaddr() == longest.encode()


def test_path_of_any_bytes_keeps_them() -> None:
    path = b"/tmp/\xff\xfe"
    assert parse_address(os.fsdecode(path)).sockaddr() == path


def test_sockaddr_of_an_abstract_address_is_the_whole_name() -> None:
    assert parse_address(ABSTRACT + "/0061").sockaddr() == b"\0a" + bytes(106)


def test_drawn_addresses_are_different() -> None:
    assert len({RandomAbstractAddress().draw().name for _ in range(100)}) == 100


@pytest.mark.parametrize("text", ["/dev/fd/3", ABSTRACT])
def test_an_address_without_a_fixed_name_cannot_be_connected_to(text: str) -> None:
    with pytest.raises(AddressError):
        parse_address(text).sockaddr()


ADDRESSES = st.one_of(
    st.builds(FdAddress, st.integers(0, 2**31 - 1)),
    st.builds(lambda rest: AbstractAddress(b"\0" + rest), st.binary(min_size=107, max_size=107)),
    st.builds(
        lambda path: PathAddress(os.fsdecode(b"/" + path)),
        st.binary(max_size=106).filter(lambda path: b"\0" not in path),
    ).filter(lambda address: not address.path.startswith("/dev/")),
    st.just(RandomAbstractAddress()),
)


@given(ADDRESSES)
def test_a_formatted_address_is_parsed_as_the_same(
    address: PathAddress | FdAddress | AbstractAddress | RandomAbstractAddress,
) -> None:
    assert parse_address(address.format()) == address


@given(st.text(st.characters(codec="utf-8")))
def test_every_text_is_parsed_or_rejected(text: str) -> None:
    for prefix in ("", "/dev/fd/", ABSTRACT + "/"):
        try:
            address = parse_address(prefix + text)
        except AddressError:
            continue
        assert parse_address(address.format()) == address
