"""The sockets that a bus listens on: its own, and the admin socket beside it.

If the options do not name an address, the service manager's sockets are used, if it passes any;
else the bus is at its default address. The address of the admin socket follows from that of the
bus. Either both sockets are opened, or none is left behind.

If no option asks for an admin socket and the bus cannot make one, for example in a directory that
it may not write to, it prints a warning and runs without one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from sbus.bus_options import NO_ADMIN
from sbus.cli.terminal.error_output import report_error
from sbus.errors import AddressError, ConfigurationError
from sbus.unix.activation import PassedSockets, forget_passed_sockets, take_passed_sockets
from sbus.unix.address import (
    Address,
    FdAddress,
    admin_address,
    parse_address,
)
from sbus.unix.default_address import own_address
from sbus.unix.listener import Listener, open_listener
from sbus.unix.owned_path import OwnedPath
from sbus.unix.users import NameNotFound, group_id, user_id

AdminAddress = Address | Literal["none"]
_OWNER_MODE = 0o600
_GROUP_MODE = 0o660


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses that the options name."""

    bus: Address | None
    """None: that of the service manager, else the default."""
    admin: AdminAddress | None
    """None: the default, which follows from the address of the bus."""
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

    def take_files(self) -> list[OwnedPath]:
        """Their files, which the caller removes from now on."""
        listeners = [self.bus] if self.admin is None else [self.bus, self.admin]
        return [file for listener in listeners if (file := listener.take_file()) is not None]

    def close(self) -> None:
        """Close both and remove their files. May be repeated."""
        try:
            if self.admin is not None:
                self.admin.close()
        finally:
            self.bus.close()


def passed_sockets(addresses: Addresses) -> PassedSockets | None:
    """The sockets that the service manager passes to this process, if they are to be used. Raises
    ConfigurationError."""
    if addresses.bus is not None:
        forget_passed_sockets()
        return None
    passed = take_passed_sockets()
    if passed is not None:
        _check_open(passed)
    return passed


def open_sockets(
    addresses: Addresses, passed: PassedSockets | None, options: Mapping[str, Any]
) -> Sockets:
    """Listen, with the mode that the options give the bus's own socket. Raises SbusError."""
    address = passed.bus if passed else addresses.bus or parse_address(own_address())
    if isinstance(address, FdAddress):
        for flag, is_given in (("-g", options["group"]), ("-o", options["others"])):
            if is_given:
                report_error(f"warning: {flag} is ignored on a socket that is passed down")
    try:
        bus = _open(address, mode=_mode(options), replace=options["replace"])
    except AddressError as error:
        if passed or addresses.bus or not isinstance(error.__cause__, PermissionError):
            raise
        raise AddressError(f"{error}; name another place with -a") from error
    _warn_of_users_kept_out(bus, options)
    try:
        return Sockets(bus, _open_admin(addresses, passed, bus, options["replace"]))
    except BaseException:
        bus.close()
        raise


def _open(address: Address, *, mode: int, replace: bool, group: int | None = None) -> Listener:
    """As `open_listener`; reports what it replaced."""
    listener = open_listener(address, mode=mode, replace=replace, group=group)
    if listener.replaced:
        report_error(f"replaced {listener.replaced}")
    return listener


def _mode(options: Mapping[str, Any]) -> int:
    """The mode of the file of the bus's own socket."""
    if options["others"]:
        return 0o777  # not 0o707: the kernel denies the group what only others may do
    return 0o770 if options["group"] else 0o700


def _warn_of_users_kept_out(bus: Listener, options: Mapping[str, Any]) -> None:
    """A user who may connect by the options, and not by the mode of the file, gets EACCES. The mode
    stays: when a reload takes the list of users away, it alone decides."""
    if bus.owned_path is not None and not (options["group"] or options["others"]):
        kept_out = [str(user) for user in options["users"] if not _may_open(user)]
        if kept_out:
            report_error(
                f"warning: {', '.join(kept_out)} of -u cannot connect, because the mode of "
                f"{bus.printable_address} is 0700: add -o, with which still only users of -u may"
            )


def _may_open(user: str | int) -> bool:
    """Whether the mode of a file of this process lets this user open it."""
    try:
        return user_id(user) in (0, os.geteuid())
    except NameNotFound:
        return False


def _check_open(passed: PassedSockets) -> None:
    """Check now: what is opened later may get the number of a missing descriptor."""
    for address in (passed.bus, passed.admin):
        if address is not None and not os.path.exists(f"/proc/self/fd/{address.number}"):
            raise ConfigurationError(
                f"the service manager says that it passes {address.format()}, which is not open"
            )


def _open_admin(
    addresses: Addresses, passed: PassedSockets | None, bus: Listener, replace: bool
) -> Listener | None:
    """The admin socket, if the bus gets one. Raises SbusError."""
    address = addresses.admin
    if passed is not None and passed.admin is not None:
        if address is not None:
            raise ConfigurationError(
                "the service manager passes an admin socket and --admin-address is given: "
                "leave one of them out"
            )
        address = passed.admin
    if address == NO_ADMIN:
        return None
    mode = _OWNER_MODE if addresses.admin_group is None else _GROUP_MODE
    open_at = partial(_open, mode=mode, replace=replace, group=addresses.admin_group)
    if address is not None:
        return open_at(address)
    derived = None
    try:
        derived = admin_address(bus.bound_address)
        return open_at(derived)
    except AddressError as error:
        is_inherited = passed is not None or isinstance(addresses.bus, FdAddress)
        if derived is not None and not is_inherited:
            raise
        report_error(f"warning: no admin socket: {error}; say where with --admin-address, or none")
        return None
