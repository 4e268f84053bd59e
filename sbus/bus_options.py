"""The options of a bus, each defined once.

The command line of sbusd, the table `[bus]` of its configuration file, `--print-config`, what a
reload can change, and the settings of the bus are made from this table. Limits are defined likewise
in `sbus.limits`. Only the standard library is needed here, so that sbusd starts fast.
"""

import os
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from sbus.unix.default_address import SYSTEM_ADDRESS, runtime_directory

WORKERS_MAX: Final = 64
"""As in `sbus.shared.shared_memory`, which takes longer to import."""
NO_ADMIN: Final = "none"
"""As `admin_address`: the bus has no admin socket."""
PREDECESSOR_VARIABLE: Final = "SBUS_PREDECESSOR_FD"
"""In the environment of a program that a bus has started to take its place: the descriptor of the
link to that bus."""
SERVICE_USER: Final = "sbus"
"""The user that the bus's packages make for it."""


class Kind(Enum):
    """What an option takes."""

    SWITCH = auto()
    ADDRESS = auto()
    PATH = auto()
    GROUP = auto()
    """A name or a number."""
    USER = auto()
    """Likewise."""
    USERS = auto()
    """A list of names and numbers; on the command line, the option is repeated."""
    CHOICE = auto()
    WORKERS = auto()
    """A number from 1 to `WORKERS_MAX`."""


class Reload(Enum):
    """When a bus that runs can apply a new value."""

    NEVER = auto()
    """After a restart."""
    ALWAYS = auto()
    WITHOUT_MODE = auto()
    """If the bus's address has no mode that the kernel enforces, so that the bus checks itself."""


class Option(NamedTuple):
    """One option; `name` is its field in `[bus]`, `letter` its short form on the command line."""

    name: str
    kind: Kind
    help: str
    letter: str = ""
    default: Any = None
    """A value, or a function without parameters that returns it."""
    default_text: str = ""
    """What `--help` says instead of the default."""
    choices: tuple[str, ...] = ()
    reload: Reload = Reload.NEVER

    @property
    def flag(self) -> str:
        """Its long form on the command line: in the singular if the option can be repeated."""
        name = self.name.removesuffix("s") if self.kind is Kind.USERS else self.name
        return f"--{name.replace('_', '-')}"

    @property
    def default_value(self) -> Any:
        return self.default() if callable(self.default) else self.default

    def is_path(self, value: Any) -> bool:
        """Whether `value` names a file. Relative paths begin where the configuration file is."""
        if (self.name, value) == ("admin_address", NO_ADMIN):
            return False
        return self.kind in (Kind.ADDRESS, Kind.PATH) and value is not None


def _switch(name: str, letter: str, text: str, reload: Reload = Reload.NEVER) -> Option:
    return Option(name, Kind.SWITCH, text, letter, default=False, reload=reload)


def _choice(name: str, *choices: str, text: str, reload: Reload = Reload.NEVER) -> Option:
    """The first of `choices` is the default."""
    return Option(name, Kind.CHOICE, text, default=choices[0], choices=choices, reload=reload)


def available_workers() -> int:
    """As many workers as this process may use processors, within what a bus can have."""
    return min(len(os.sched_getaffinity(0)), WORKERS_MAX)


OPTIONS: Final = (
    Option(
        "address",
        Kind.ADDRESS,
        "A path; /dev/fd/N, a socket passed down; /dev/unix/abstract, a random abstract address, "
        "which is printed; or /dev/unix/abstract/HEX, a given one.",
        letter="a",
        default_text="the socket of the service manager, else "
        f"{SYSTEM_ADDRESS}, or $XDG_RUNTIME_DIR/sbus.socket for users other than root",
    ),
    _switch(
        "foreground",
        "f",
        "Stay in the foreground; input and output are closed when the bus is ready.",
    ),
    Option(
        "pidfile",
        Kind.PATH,
        "The pidfile of a bus in the background, which one bus uses at a time; /dev/null for none.",
        letter="p",
        # Of the user that starts the bus, which may run as another one later.
        default=f"{runtime_directory()}/sbus.pid",
        default_text="/run/sbus.pid, or $XDG_RUNTIME_DIR/sbus.pid",
    ),
    Option(
        "users",
        Kind.USERS,
        "A user, by name or id, who may connect; others may not. Repeatable.",
        letter="u",
        default=(),
        reload=Reload.ALWAYS,
    ),
    _switch("exit_when_empty", "c", "End when the last client has left.", Reload.ALWAYS),
    _switch("group", "g", "Let the group connect.", Reload.WITHOUT_MODE),
    _switch("others", "o", "Let everybody connect.", Reload.WITHOUT_MODE),
    _switch("replace", "r", "Replace sockets that no process has open any more, and empty files."),
    Option(
        "admin_address",
        Kind.ADDRESS,
        "Where sbusctl administers the bus; none for nowhere.",
        default_text="that of the bus, and .admin",
    ),
    Option(
        "admin_group",
        Kind.GROUP,
        "A group whose members may administer the bus, besides root and the bus's own user.",
    ),
    Option(
        "run_as",
        Kind.USER,
        "The user that the bus runs as when root starts it, without root's rights.",
        default_text=f"{SERVICE_USER}, if there is that user",
    ),
    _switch(
        "disconnect_descriptors",
        "",
        "Disconnect clients that attach descriptors to packets, instead of refusing these packets.",
    ),
    Option(
        "workers",
        Kind.WORKERS,
        "Processes that serve clients.",
        default=available_workers,
        default_text="the processors it may use",
    ),
    _choice(
        "placement",
        *("load", "spread"),
        text="Which worker serves a client; load: few workers while they are not busy, spread: "
        "the worker with the fewest clients.",
    ),
    _choice("dialect", "slash", "dot", text="What separates the segments of a key."),
    _choice(
        "soft",
        *("queue", "discard", "block", "error"),
        text="What happens to a message for a client whose socket is full, unless the client "
        "chooses.",
        reload=Reload.ALWAYS,
    ),
    _choice(
        "hard",
        *("discard", "block", "error"),
        text="What happens to it when the client's backlog is full as well.",
        reload=Reload.ALWAYS,
    ),
    _choice(
        "order",
        *("queue", "stack", "random", "latest"),
        text="How a backlog is sent: oldest, newest or largest first, or oldest first with only "
        "the newest message of each key.",
        reload=Reload.ALWAYS,
    ),
    _choice(
        "log",
        *("auto", "journal", "stderr"),
        text="Where events are logged; auto: to the journal, where standard error leads there.",
    ),
)


def reloadable_options(*, without_mode: bool) -> frozenset[str]:
    """Options that a bus that runs can apply; `without_mode` as `Reload.WITHOUT_MODE` says."""
    when = {Reload.ALWAYS, Reload.WITHOUT_MODE} if without_mode else {Reload.ALWAYS}
    return frozenset(option.name for option in OPTIONS if option.reload in when)
