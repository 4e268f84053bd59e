"""What a bus is asked for: the words of its command line, above those of its configuration file.

Options and fields of the file's table `[bus]` have the same names, so what holds is one dict: of
each name what the command line gives, else what the file says, else the default. It is made at
start, and made again, from the same words, when the file is read again.

The parts of the broker that understand a file are imported when there is one. This module does not
know the command line's syntax, nor what a bus does with a plan.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sbus.cli.sbusd.admission_options import resolve_users
from sbus.cli.sbusd.sockets import Addresses, parse_admin_address
from sbus.unix.address import parse_address
from sbus.unix.users import group_id

if TYPE_CHECKING:
    from sbus.broker.config.file import ConfigFile
    from sbus.broker.config.resolution import Resolved
    from sbus.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A command line that has been understood, with its file."""

    bus: Mapping[str, Any]
    """What holds, as the words of `[bus]`; the fields from here to `log` are made of it."""
    addresses: Addresses
    pidfile: str | None
    """An absolute path; None for no file."""
    foreground: bool
    uids: frozenset[int]
    """Those of `-u`; empty without it."""
    group: bool
    others: bool
    replace: bool
    exit_when_empty: bool
    refuse_descriptors: bool
    workers: int
    dialect: str
    soft: str
    hard: str
    order: str
    """The flood control that clients begin with, each as its control key ends."""
    log: str
    """Where events are logged."""
    limits: "Limits | None"
    """Those of the command line and the file; None for the defaults."""
    file: "ConfigFile | None"
    resolved: "Resolved | None"
    """None without a file, like it."""
    reread: "Callable[[], Plan] | None"
    """Understands the same words with what the file says now; None without a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A command line, taken apart."""

    options: Mapping[str, Any]
    """By name, with defaults; those that are not options of the bus itself are apart."""
    given: frozenset[str]
    """Those that are not defaults."""
    limits: tuple[str, ...]
    """`NAME=VALUE`."""
    file: str | None

    def understand(self) -> Plan:
        """Read the file, if there is one, and make a plan. Raises ConfigurationError."""
        file = None if self.file is None else _read(self.file)
        bus = dict(self.options)
        if file is not None:
            bus.update((name, file.bus[name]) for name in file.bus.keys() - self.given)
        limits = _limits(self.limits, file)
        resolved = None if file is None else _resolve(file, bus["dialect"], limits)
        return Plan(
            bus=bus,
            addresses=_addresses(bus),
            pidfile=None if bus["pidfile"] == os.devnull else os.path.abspath(bus["pidfile"]),
            foreground=bus["foreground"],
            uids=resolve_users(bus["users"]),
            group=bus["group"],
            others=bus["others"],
            replace=bus["replace"],
            exit_when_empty=bus["exit_when_empty"],
            refuse_descriptors=bus["refuse_descriptors"],
            workers=bus["workers"],
            dialect=bus["dialect"],
            soft=bus["soft"],
            hard=bus["hard"],
            order=bus["order"],
            log=bus["log"],
            limits=limits,
            file=file,
            resolved=resolved,
            reread=None if self.file is None else self._again(self.file).understand,
        )

    def _again(self, file: str) -> "Words":
        """The same words for a process that may be in another directory by then."""
        return replace(self, file=os.path.abspath(file))


def _addresses(bus: Mapping[str, Any]) -> Addresses:
    address, admin, group = bus["address"], bus["admin_address"], bus["admin_group"]
    return Addresses(
        bus=None if address is None else parse_address(address),
        admin=None if admin is None else parse_admin_address(admin),
        admin_group=None if group is None else group_id(group),
    )


def _read(path: str) -> "ConfigFile":
    from sbus.broker.config.file import read_config

    return read_config(path)


def _resolve(file: "ConfigFile", dialect: str, limits: "Limits | None") -> "Resolved":
    from sbus.broker.config.resolution import resolve
    from sbus.limits import Limits
    from sbus.protocol.keys import DIALECTS

    return resolve(file, DIALECTS[dialect], limits or Limits())


def _limits(assignments: tuple[str, ...], file: "ConfigFile | None") -> "Limits | None":
    """Limits of the command line, then those of the file, then the defaults, which are None."""
    if not assignments and file is None:
        return None
    import msgspec

    from sbus.cli.sbusd.limit_options import parse_limits
    from sbus.limits import Limits

    beneath = Limits()
    if file is not None:
        beneath = msgspec.structs.replace(beneath, **file.limits)
    return parse_limits(assignments, beneath)
