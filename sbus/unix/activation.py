"""Sockets that a service manager listens on and passes down, by the protocol of sd_listen_fds(3).

It counts them in `LISTEN_FDS`, from descriptor 3 on, names them in `LISTEN_FDNAMES`, and says in
`LISTEN_PID` whom they are for, since children inherit the environment. A bus takes two at most: its
own socket, named `bus`, and its admin socket, named `admin`. One that comes alone under another
name, or without one, is the bus's: that is what systemd-socket-activate passes, and a socket unit
without `FileDescriptorName=`.

This module does not know whether what is passed can listen; see `sbus.unix.listener`.
"""

import os
from collections.abc import MutableMapping
from dataclasses import dataclass

from sbus.errors import ConfigurationError
from sbus.unix.address import FdAddress
from sbus.unix.standard_streams import ERRORS

BUS, ADMIN = "bus", "admin"
_FIRST = ERRORS + 1
_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class PassedSockets:
    """What is passed to this process."""

    bus: FdAddress
    admin: FdAddress | None


def take_passed_sockets(environment: MutableMapping[str, str] = os.environ) -> PassedSockets | None:
    """The sockets that are meant for this process; None when there are none.

    The variables are removed, whomever they are meant for. Raises ConfigurationError for anything
    but a bus socket and, perhaps, an admin socket.
    """
    pid = environment.pop("LISTEN_PID", None)
    count = environment.pop("LISTEN_FDS", None)
    names = environment.pop("LISTEN_FDNAMES", None)
    if pid is None or count is None or _number("LISTEN_PID", pid) != os.getpid():
        return None
    numbers = range(_FIRST, _FIRST + _number("LISTEN_FDS", count))
    if not numbers:
        return None
    given = [""] * len(numbers) if names is None else names.split(":")
    if len(given) != len(numbers):
        raise ConfigurationError(
            f"the service manager passes {len(numbers)} sockets and {len(given)} names for them"
        )
    if len(given) == 1 and given[0] != ADMIN:
        given = [BUS]
    if BUS not in given or len(set(given)) < len(given) or not set(given) <= {BUS, ADMIN}:
        shown = ascii(", ".join(name or "(no name)" for name in given))[1:-1][:_SHOWN_MAX]
        raise ConfigurationError(
            f"the service manager passes sockets named: {shown}; there must be one named {BUS} and "
            f"may be one named {ADMIN}, see FileDescriptorName= in systemd.socket(5)"
        )
    passed = {name: FdAddress(number) for name, number in zip(given, numbers, strict=True)}
    return PassedSockets(passed[BUS], passed.get(ADMIN))


def forget_passed_sockets(environment: MutableMapping[str, str] = os.environ) -> None:
    """Leave alone what is passed, and let no child think that it is meant."""
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environment.pop(variable, None)


def _number(variable: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(2**31))):
        raise ConfigurationError(f"{variable} is no number: {ascii(text)[:_SHOWN_MAX]}")
    return int(text)
