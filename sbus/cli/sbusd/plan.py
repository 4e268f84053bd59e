"""What sbusd starts: the command line overrides the configuration file, which overrides defaults.

Options have the same names on the command line and in the file's table `[bus]`, so they are merged
as one dict. That is done when sbusd starts, and again from the same command line when the file is
read again. Modules of the broker are imported when they are needed: to read a file, to understand
limits, or to start the bus.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sbus.bus_options import OPTIONS
from sbus.cli.sbusd.sockets import Addresses
from sbus.errors import ConfigurationError
from sbus.unix.users import Identity, NameNotFound, user_id

if TYPE_CHECKING:
    from sbus.broker.config.file import ConfigFile
    from sbus.broker.config.resolution import Configuration, Resolved


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was given: options by name, limits as `NAME=VALUE`, and the path of a file."""

    options: Mapping[str, Any]
    limits: tuple[str, ...]
    file: str | None
    owner: Identity = field(default_factory=Identity.of_this_process)
    """Gave this command line. The bus may run as another user when it reads the file again."""

    def plan(self, *, may_miss_names: bool = False) -> "Plan":
        """Merge the options, and read the file if there is one. `may_miss_names`: users and groups
        that are not found are no error. Raises ConfigurationError."""
        file = None
        if self.file is not None:
            from sbus.broker.config.file import read_config

            file = read_config(self.file)
        return self.plan_with(file, may_miss_names=may_miss_names)

    def plan_with(self, file: "ConfigFile | None", *, may_miss_names: bool) -> "Plan":
        """The same with what this file says."""
        missing: list[str] | None = [] if may_miss_names else None
        options = {option.name: option.default_value for option in OPTIONS}
        if file is not None:
            options |= file.bus
        options |= self.options
        return Plan(
            # The file may be read again by a process that is in another directory.
            command_line=replace(self, file=self.file and os.path.abspath(self.file)),
            options=options,
            file=file,
            resolved=_resolve(file, options["dialect"], self.limits, missing),
            users=frozenset(_users(options["users"], missing)),
            run_as=None if options["run_as"] is None else Identity.of_user(options["run_as"]),
            addresses=Addresses.of_options(options),
            missing_names=tuple(missing or ()),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command line means, together with its file."""

    command_line: CommandLine
    options: Mapping[str, Any]
    """The values of all options."""
    file: "ConfigFile | None"
    resolved: "Resolved | None"
    """What the file and the limits mean; None if neither was given."""
    users: frozenset[int]
    run_as: Identity | None
    """What the options name; None if they do not."""
    addresses: Addresses
    missing_names: tuple[str, ...] = ()
    """Users and groups that were not found, each with its place."""

    def configuration(self, *, is_abstract: bool) -> "Configuration":
        """The configuration of a bus whose address is abstract or is not."""
        from sbus.broker.config.resolution import Resolved, build_configuration

        resolved = self.resolved or Resolved()
        return build_configuration(
            self.options,
            self.users,
            resolved,
            owner=self.command_line.owner,
            is_abstract=is_abstract,
            missing_names=self.missing_names,
        )

    def given_by(self, owner: Identity) -> "Plan":
        """The same, as if this user had given the command line."""
        return replace(self, command_line=replace(self.command_line, owner=owner))

    def check(self) -> None:
        """Raise SbusError if the bus could not start, as far as that shows without its socket."""
        from sbus.broker.bus import check_settings

        check_settings(self.configuration(is_abstract=False).settings)

    def format(self) -> str:
        """A configuration file from which the same plan is made."""
        from sbus.broker.config.file import ConfigFile, format_config
        from sbus.limits import Limits

        limits = self.resolved.limits if self.resolved else Limits()
        return format_config(self.options, limits, self.file or ConfigFile())

    def read_again(self) -> "Plan":
        """The plan with what the file says now, checked. Raises ConfigurationError."""
        if self.file is None:
            raise ConfigurationError("this bus was started without a file to read (--config)")
        plan = self.command_line.plan()
        plan.check()
        return plan

    def look_up_names(self) -> "Plan":
        """The same plan with the users and groups that are found now. Raises ConfigurationError."""
        return self.command_line.plan_with(self.file, may_miss_names=True)


def _users(names: Iterable[str | int], missing: list[str] | None) -> Iterator[int]:
    """The ids of users; names that are not found are added to `missing`. Raises
    ConfigurationError, also for such a name if `missing` is None."""
    for name in names:
        try:
            yield user_id(name)
        except NameNotFound as error:
            if missing is None:
                raise
            missing.append(str(error))


def _resolve(
    file: "ConfigFile | None",
    dialect: str,
    assignments: tuple[str, ...],
    missing: list[str] | None,
) -> "Resolved | None":
    if file is None and not assignments:
        return None
    import msgspec

    from sbus.broker.config.file import ConfigFile
    from sbus.broker.config.resolution import resolve
    from sbus.cli.limit_options import parse_limits
    from sbus.limits import Limits
    from sbus.protocol.keys import DIALECTS

    file = file or ConfigFile()
    limits = parse_limits(assignments, msgspec.structs.replace(Limits(), **file.limits))
    return resolve(file, DIALECTS[dialect], limits, missing)
