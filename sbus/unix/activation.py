"""Sockets that a service manager passes to this process, by the protocol of sd_listen_fds(3).

`LISTEN_FDS` is their number, from descriptor 3 on, `LISTEN_FDNAMES` their names, and `LISTEN_PID`
the process that they are for, since children inherit the environment. A bus takes at most two: its
own socket, named `bus`, and its admin socket, named `admin`. A single socket with another name, or
without one, is the bus's: systemd-socket-activate passes that, and a socket unit without
`FileDescriptorName=`. Behind the sockets come the descriptors that the service itself has stored.
"""

import os
from collections.abc import MutableMapping
from dataclasses import dataclass

from sbus.errors import ConfigurationError
from sbus.unix.address import FdAddress
from sbus.unix.descriptor_store import PREFIX, StoredDescriptors
from sbus.unix.standard_streams import ERRORS

BUS, ADMIN = "bus", "admin"
_FIRST = ERRORS + 1
_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class PassedSockets:
    bus: FdAddress
    admin: FdAddress | None


def take_stored_descriptors(
    environment: MutableMapping[str, str] = os.environ,
) -> StoredDescriptors:
    """What an earlier process of this service has stored; leaves the sockets in the variables.
    Raises ConfigurationError."""
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    sockets = next((i for i, name in enumerate(names) if name.startswith(PREFIX)), len(names))
    stored = names[sockets:]
    if (
        not stored
        or _number("LISTEN_PID", environment.get("LISTEN_PID", "")) != os.getpid()
        or _number("LISTEN_FDS", environment.get("LISTEN_FDS", "")) != len(names)
    ):
        return StoredDescriptors()
    environment["LISTEN_FDS"] = str(sockets)
    environment["LISTEN_FDNAMES"] = ":".join(names[:sockets])
    numbers = range(_FIRST + sockets, _FIRST + len(names))
    return StoredDescriptors.of(zip(stored, numbers, strict=True))


def take_named_descriptors(environment: MutableMapping[str, str] = os.environ) -> dict[str, int]:
    """All descriptors that are passed to this process, of a service that has no sockets of its own,
    by their names; removes the variables."""
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    pid, count = environment.get("LISTEN_PID", ""), environment.get("LISTEN_FDS", "")
    forget_passed_sockets(environment)
    if (pid, count) != (str(os.getpid()), str(len(names))):
        return {}
    for number in range(_FIRST, _FIRST + len(names)):
        os.set_inheritable(number, False)
    return dict(zip(names, range(_FIRST, _FIRST + len(names)), strict=True))


def take_passed_sockets(environment: MutableMapping[str, str] = os.environ) -> PassedSockets | None:
    """The sockets that are for this process, or None; removes the variables in any case. Raises
    ConfigurationError for anything but a bus socket and, perhaps, an admin socket."""
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
    """Ignore the sockets that are passed, also in all children."""
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environment.pop(variable, None)


def _number(variable: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(2**31))):
        raise ConfigurationError(f"{variable} is no number: {ascii(text)[:_SHOWN_MAX]}")
    return int(text)
