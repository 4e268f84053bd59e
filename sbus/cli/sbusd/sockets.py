"""The sockets that a bus listens on: its own, and the one beside it to administer it by.

Where the command line does not say where they are, the service manager's are taken, if it passes
any; else the bus is at its default address. Where the admin socket is follows from where the bus
really is. Either both are there at the end, or none of them was left behind.

A bus does without an admin socket that nobody asked for in so many words, and says so, where it
cannot have one: beside a socket that was passed down, say, in a directory that it may not write to.
This module does not know what is spoken on either of them.
"""

import os
from dataclasses import dataclass
from typing import Final, Literal

from sbus.cli.sbusd.admission_options import socket_mode
from sbus.cli.terminal.error_output import report_error
from sbus.errors import AddressError, ConfigurationError
from sbus.unix.activation import PassedSockets, forget_passed_sockets, take_passed_sockets
from sbus.unix.address import (
    DEFAULT_ADDRESS,
    Address,
    FdAddress,
    PathAddress,
    admin_address,
    parse_address,
)
from sbus.unix.listener import Listener, open_listener

NO_ADMIN: Final = "none"
AdminAddress = Address | Literal["none"]
_OWNER_MODE = 0o600
_GROUP_MODE = 0o660


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the sockets are to be, as far as somebody said so."""

    bus: Address | None
    """None for the service manager's choice, else the default."""
    admin: AdminAddress | None
    """None for wherever that of this bus is expected."""
    admin_group: int | None
    """The group whose members may administer the bus."""

    @property
    def admin_gids(self) -> frozenset[int]:
        return frozenset() if self.admin_group is None else frozenset({self.admin_group})


def parse_admin_address(text: str) -> AdminAddress:
    """Understand an address or `none`. Raises AddressError."""
    return NO_ADMIN if text == NO_ADMIN else parse_address(text)


@dataclass(frozen=True, slots=True)
class Sockets:
    """What a bus listens on."""

    bus: Listener
    admin: Listener | None

    def close(self) -> None:
        """Close both, and remove what was made. May be repeated."""
        try:
            if self.admin is not None:
                self.admin.close()
        finally:
            self.bus.close()


def open_sockets(addresses: Addresses, *, group: bool, others: bool, replace: bool) -> Sockets:
    """Listen, with the mode of `-g` and `-o` for the bus's own socket. Raises SbusError."""
    if addresses.bus is None:
        passed = take_passed_sockets()
    else:
        passed = None
        forget_passed_sockets()
    if passed is not None:
        _check_open(passed)
    address = _bus_address(addresses, passed)
    if isinstance(address, FdAddress):
        for option, given in (("-g", group), ("-o", others)):
            if given:
                report_error(f"warning: {option} is ignored on a socket that is passed down")
    bus = open_listener(address, mode=socket_mode(group=group, others=others), replace=replace)
    try:
        return Sockets(bus, _open_admin(addresses, passed, bus, address, replace))
    except BaseException:
        bus.close()
        raise


def _check_open(passed: PassedSockets) -> None:
    """Before anything is opened, which might get the number of what is missing."""
    for address in (passed.bus, passed.admin):
        if address is not None and not os.path.exists(f"/proc/self/fd/{address.number}"):
            raise ConfigurationError(
                f"the service manager says that it passes {address.format()}, which is not open"
            )


def _bus_address(addresses: Addresses, passed: PassedSockets | None) -> Address:
    if passed is not None:
        return passed.bus
    return addresses.bus or PathAddress(DEFAULT_ADDRESS)


def _open_admin(
    addresses: Addresses,
    passed: PassedSockets | None,
    bus: Listener,
    bus_address: Address,
    replace: bool,
) -> Listener | None:
    address = addresses.admin
    if passed is not None and passed.admin is not None:
        if address is not None:
            raise ConfigurationError(
                "the service manager passes an admin socket and --admin-address is given: "
                "leave one of them out"
            )
        address = passed.admin
    if address is not None:
        if address == NO_ADMIN:
            return None
        return _listen(address, addresses.admin_group, replace)
    try:
        derived = admin_address(bus.bound_address)
    except AddressError as error:
        _warn_of_none(error)
        return None
    try:
        return _listen(derived, addresses.admin_group, replace)
    except AddressError as error:
        if not isinstance(bus_address, FdAddress):
            raise
        _warn_of_none(error)
        return None


def _listen(address: Address, group: int | None, replace: bool) -> Listener:
    mode = _OWNER_MODE if group is None else _GROUP_MODE
    return open_listener(address, mode=mode, replace=replace, group=group)


def _warn_of_none(error: AddressError) -> None:
    report_error(f"warning: no admin socket: {error}; say where with --admin-address, or none")
