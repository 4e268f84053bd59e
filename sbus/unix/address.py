"""Addresses of a bus.

An address is a text, the same for the daemon and for its clients:

- a path of the file system, such as `/run/sbus.socket`;
- `/dev/fd/N`, a listening socket that the daemon inherits under that number;
- `/dev/unix/abstract/HEX`, a name in Linux's abstract namespace. HEX is `sun_path` from its first
  byte, which is NUL there, so it begins with `00`. All 108 bytes are significant: those that HEX
  leaves out are NUL;
- `/dev/unix/abstract`, for the daemon only: a random abstract name, drawn when it starts.
"""

import hashlib
import os
import re
from dataclasses import dataclass

from sbus.errors import AddressError

SUN_PATH_BYTES = 108
"""Size of `sun_path` in Linux's `struct sockaddr_un`, see unix(7)."""

_FD_PREFIX = "/dev/fd/"
_ABSTRACT = "/dev/unix/abstract"
_FD_NUMBER_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PathAddress:
    """A socket in the file system; `path` is 1 to 107 bytes in the file system's encoding."""

    path: str

    def sockaddr(self) -> bytes:
        return os.fsencode(self.path)

    def format(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class FdAddress:
    """A socket inherited as file descriptor `number`."""

    number: int

    def sockaddr(self) -> bytes:
        raise AddressError(
            f"{self.format()} is a socket to inherit, it can be neither bound nor connected to"
        )

    def format(self) -> str:
        return f"{_FD_PREFIX}{self.number}"


@dataclass(frozen=True, slots=True)
class AbstractAddress:
    """A name in the abstract namespace; `name` has 108 bytes, of which the first is NUL."""

    name: bytes

    def sockaddr(self) -> bytes:
        return self.name

    def format(self) -> str:
        return f"{_ABSTRACT}/{self.name.hex()}"


@dataclass(frozen=True, slots=True)
class RandomAbstractAddress:
    """Any abstract name: `draw` one before using it."""

    def draw(self) -> AbstractAddress:
        return AbstractAddress(b"\0" + os.urandom(SUN_PATH_BYTES - 1))

    def sockaddr(self) -> bytes:
        raise AddressError(
            f"{_ABSTRACT} stands for a random address: use the one that the bus printed"
        )

    def format(self) -> str:
        return _ABSTRACT


Address = PathAddress | FdAddress | AbstractAddress | RandomAbstractAddress
"""Every kind has `sockaddr()`, for bind(2) and connect(2), and `format()`, the text that
`parse_address` reads. `sockaddr` raises AddressError for the two kinds without a fixed name."""


def admin_address(bus: Address) -> Address:
    """The default address of the admin socket of the bus at this address.

    For a path it is that path and `.admin`; for an abstract name, `sbus-admin/` and the SHA-256 of
    the bus's 108 bytes in hexadecimal. For an inherited socket use `address_of`. Raises
    AddressError when the path is too long, or the address has no fixed name.
    """
    if isinstance(bus, PathAddress):
        return parse_address(f"{bus.path}.admin")
    digest = hashlib.sha256(bus.sockaddr().ljust(SUN_PATH_BYTES, b"\0")).hexdigest()
    return AbstractAddress(b"\0sbus-admin/" + digest.encode().ljust(SUN_PATH_BYTES - 12, b"\0"))


def address_of(name: str | bytes) -> Address:
    """The address of a socket, from its `getsockname()`."""
    if isinstance(name, str):
        return PathAddress(name)
    return AbstractAddress(name.ljust(SUN_PATH_BYTES, b"\0"))


def parse_address(text: str) -> Address:
    """Parse an address; an AddressError says in one line what is wrong with it."""
    if text == _ABSTRACT:
        return RandomAbstractAddress()
    if text.startswith(_ABSTRACT + "/"):
        return _parse_abstract(text)
    if text.startswith(_FD_PREFIX):
        return _parse_fd(text)
    return _parse_path(text)


def _parse_abstract(text: str) -> AbstractAddress:
    digits = text.removeprefix(_ABSTRACT + "/")
    shown = _abridged(text)
    if not re.fullmatch(r"[0-9A-Fa-f]*", digits):
        raise AddressError(f"{shown}: only hexadecimal digits may follow {_ABSTRACT}/")
    if len(digits) % 2:
        raise AddressError(f"{shown}: an odd number of hexadecimal digits ({len(digits)})")
    if not digits.startswith("00"):
        raise AddressError(f"{shown}: an abstract address begins with the byte 00")
    name = bytes.fromhex(digits)
    if len(name) > SUN_PATH_BYTES:
        raise AddressError(
            f"{shown}: {len(name)} bytes are too long for an address, {SUN_PATH_BYTES} are the most"
        )
    return AbstractAddress(name.ljust(SUN_PATH_BYTES, b"\0"))


def _parse_fd(text: str) -> FdAddress:
    digits = text.removeprefix(_FD_PREFIX)
    if not re.fullmatch(r"[0-9]{1,10}", digits) or int(digits) > _FD_NUMBER_MAX:
        raise AddressError(f"{_abridged(text)}: not the number of a file descriptor")
    return FdAddress(int(digits))


def _parse_path(text: str) -> PathAddress:
    if not text:
        raise AddressError("the address is empty: give a path, /dev/fd/N or /dev/unix/abstract")
    if "\0" in text:
        raise AddressError(f"{_abridged(text)}: a path cannot hold a NUL")
    length = len(os.fsencode(text))
    if length >= SUN_PATH_BYTES:
        raise AddressError(
            f"{_abridged(text)}: {length} bytes are too long for the path of a socket, "
            f"{SUN_PATH_BYTES - 1} are the most"
        )
    return PathAddress(text)


def _abridged(text: str) -> str:
    """The text as one printable line of bounded length, for an error text."""
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= 60 else f"{shown[:45]}...{shown[-12:]}"
