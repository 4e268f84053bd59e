"""The sockets that a bus listens on: its own, and the admin socket beside it.

If the options do not name an address, the service manager's sockets are used, if it passes any;
else the bus is at its default address. The address of the admin socket follows from that of the
bus. Either both sockets are open at the end, or nothing of them is left behind.

If nobody asked for an admin socket, the bus does without one where it cannot have it, for example
in a directory that it may not write to, and prints a warning.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sbus.bus_options import NO_ADMIN
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
from sbus.unix.users import group_id

AdminAddress = Address | Literal["none"]
_OWNER_MODE = 0o600
_GROUP_MODE = 0o660


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the sockets are to be, as far as the options say."""

    bus: Address | None
    """None: the service manager's choice, else the default."""
    admin: AdminAddress | None
    """None: where clients expect that of this bus."""
    admin_group: int | None
    """The group whose members may administer the bus."""

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> "Addresses":
        """Raises ConfigurationError."""
        address, admin, group = options["address"], options["admin_address"], options["admin_group"]
        return cls(
            bus=None if address is None else parse_address(address),
            admin=admin if admin in (None, NO_ADMIN) else parse_address(admin),
            admin_group=None if group is None else group_id(group),
        )

    @property
    def admin_gids(self) -> frozenset[int]:
        return frozenset() if self.admin_group is None else frozenset({self.admin_group})


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


def open_sockets(addresses: Addresses, options: Mapping[str, Any]) -> Sockets:
    """Listen, with the mode that the options give the bus's own socket. Raises SbusError."""
    group, others, replace = options["group"], options["others"], options["replace"]
    passed = None
    if addresses.bus is None:
        passed = take_passed_sockets()
    else:
        forget_passed_sockets()
    if passed is not None:
        _check_open(passed)
        bus_address: Address = passed.bus
    else:
        bus_address = addresses.bus or PathAddress(DEFAULT_ADDRESS)
    if isinstance(bus_address, FdAddress):
        for option, given in (("-g", group), ("-o", others)):
            if given:
                report_error(f"warning: {option} is ignored on a socket that is passed down")
    mode = 0o700 | (0o070 if group else 0) | (0o007 if others else 0)
    bus = open_listener(bus_address, mode=mode, replace=replace)
    try:
        admin = _wanted_admin_address(addresses, passed)
        if admin is None:
            return Sockets(bus, _open_derived_admin(bus, bus_address, addresses, replace))
        return Sockets(bus, None if admin == NO_ADMIN else _open_admin(admin, addresses, replace))
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


def _wanted_admin_address(
    addresses: Addresses, passed: PassedSockets | None
) -> AdminAddress | None:
    if passed is None or passed.admin is None:
        return addresses.admin
    if addresses.admin is not None:
        raise ConfigurationError(
            "the service manager passes an admin socket and --admin-address is given: "
            "leave one of them out"
        )
    return passed.admin


def _open_derived_admin(
    bus: Listener, bus_address: Address, addresses: Addresses, replace: bool
) -> Listener | None:
    """The admin socket where clients expect that of this bus, or a warning and None."""
    try:
        derived = admin_address(bus.bound_address)
    except AddressError as error:
        _warn_of_none(error)
        return None
    try:
        return _open_admin(derived, addresses, replace)
    except AddressError as error:
        if not isinstance(bus_address, FdAddress):
            raise
        _warn_of_none(error)
        return None


def _open_admin(address: Address, addresses: Addresses, replace: bool) -> Listener:
    mode = _OWNER_MODE if addresses.admin_group is None else _GROUP_MODE
    return open_listener(address, mode=mode, replace=replace, group=addresses.admin_group)


def _warn_of_none(error: AddressError) -> None:
    report_error(f"warning: no admin socket: {error}; say where with --admin-address, or none")
