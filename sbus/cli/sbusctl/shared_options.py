"""Options before the verbs, options that several verbs have, and completion.

Completion asks the bus. It must be fast, and silent if the bus does not answer.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

import sbus
from sbus.client.options import LinkOptions
from sbus.client.sockets import BUS_ABSENT
from sbus.errors import AddressError, ConfigurationError, PatternWarning, SbusError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from msgspec import Struct

    from sbus.client.admin import AdminConnection
    from sbus.client.blocking import Connection
    from sbus.client.message_queue import Lost
    from sbus.protocol.admin import Request
    from sbus.protocol.admin_results import MeResult
    from sbus.protocol.packets import Message

R = TypeVar("R", bound="Struct")
T = TypeVar("T")
C = TypeVar("C", bound="Connection[Any]")

COMPLETION_SECONDS_MAX = 1.0
_ME_SECONDS_MAX = 10.0
_LOOK_SECONDS = 0.02
"""Between two looks whether there is a bus: the kernel does not report when a socket is made."""


@dataclass(frozen=True, slots=True)
class SelectedBus:
    """The options before the verb: which bus, and how to talk to it."""

    address: str | None
    """None for the default bus."""
    admin_address: str | None
    """None for the admin socket that belongs to the bus."""
    link: LinkOptions
    wait_seconds: float = 0.0
    """How long to wait for a bus that is not there yet."""

    def connect(self, timeout_seconds: float | None = None) -> "Connection[Message]":
        """Connect to the bus; the caller closes it. Raises SbusError."""
        return self._connect(
            lambda: sbus.blocking.connect(
                self.address, timeout_seconds=timeout_seconds, **self.link
            )
        )

    def connect_with_losses(self, *, reconnect: bool, sender: bool) -> "Connection[Message | Lost]":
        """Likewise, with losses among the messages."""
        link: LinkOptions = {**self.link, "reconnect": reconnect, "sender": sender}
        return self._connect(lambda: sbus.blocking.connect(self.address, losses="report", **link))

    def _wait_for(self, connect: Callable[[], T]) -> T:
        """What `connect` returns, as soon as there is a bus."""
        deadline = time.monotonic() + self.wait_seconds
        while True:
            try:
                return connect()
            except AddressError as error:
                cause = error.__cause__
                is_absent = isinstance(cause, OSError) and cause.errno in BUS_ABSENT
                if not is_absent or time.monotonic() >= deadline:
                    raise
            time.sleep(_LOOK_SECONDS)

    def _connect(self, connect: Callable[[], C]) -> C:
        """Likewise, to a bus of the dialect that was chosen."""
        bus = self._wait_for(connect)
        if self.link["dialect"] == "dot":
            try:
                _check_dialect(bus)
            except BaseException:
                bus.close()
                raise
        return bus

    def me(self) -> "MeResult":
        """What the bus has of this user. Raises SbusError."""
        with self.connect(timeout_seconds=_ME_SECONDS_MAX) as bus:
            return bus.me(timeout_seconds=_ME_SECONDS_MAX)

    def connect_admin(self, timeout_seconds: float = 30.0) -> "AdminConnection":
        """Connect to the admin socket; the caller closes it. Raises AddressError."""
        from sbus.client.admin import AdminConnection

        return self._wait_for(
            lambda: AdminConnection(
                self.address, address=self.admin_address, timeout_seconds=timeout_seconds
            )
        )

    def ask_and_show(
        self, request: "Request", *, as_json: bool, timeout_seconds: float = 30.0
    ) -> None:
        """Send a request to the admin socket, and print the result."""
        from sbus.cli.sbusctl.admin_requests import ask_and_show

        with self.connect_admin(timeout_seconds) as admin:
            ask_and_show(admin, request, as_json=as_json)


def _check_dialect(bus: "Connection[Any]") -> None:
    """Raise ConfigurationError for a bus of the slash dialect: there, a star matches dots, too."""
    name = f"sbus.sync.{os.urandom(16).hex()}"
    bus.subscribe(f"{name}.*")
    bus.publish(f"{name}.a.b")
    bus.unsubscribe(f"{name}.*")
    bus.sync()
    try:
        bus.receive(timeout_seconds=0)
    except TimeoutError:
        return
    raise ConfigurationError(f"the bus at {bus.address} has the slash dialect: leave --dialect out")


def verb(
    *examples: str, kind: type[click.Command] = click.Command
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a verb of a function, whose first parameter is the selected bus."""
    title = "Examples" if len(examples) > 1 else "Example"
    epilog = "\n  ".join([f"\b\n{title}:", *examples])
    return lambda function: click.command(cls=kind, epilog=epilog)(click.pass_obj(function))


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line."
)
interval_option = click.option(
    "--interval",
    "interval_seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1, max=86_400),
    default=2.0,
    show_default=True,
    help="Seconds between two updates.",
)


def report_hints(patterns: Iterable[bytes], dialect: str) -> None:
    """Say on standard error which patterns are hardly what is meant."""
    from sbus.cli.terminal.error_output import report_error
    from sbus.protocol.keys import DIALECTS
    from sbus.protocol.pattern_hints import pattern_hint

    for pattern in patterns:
        if (hint := pattern_hint(pattern, DIALECTS[dialect])) is not None:
            report_error(f"hint: {hint}", command="sbusctl")


@contextmanager
def hinted(patterns: Iterable[bytes], dialect: str) -> Iterator[None]:
    """Likewise, and within the block the library does not warn of them."""
    report_hints(patterns, dialect)
    with warnings.catch_warnings(action="ignore", category=PatternWarning):
        yield


# -- completion ------------------------------------------------------------------------------------
def complete_clients(
    context: click.Context, _parameter: click.Parameter, prefix: str
) -> "list[CompletionItem]":
    """Numbers of clients, with their users and programs."""
    from click.shell_completion import CompletionItem

    from sbus.cli.terminal.user_names import user_name
    from sbus.protocol.admin import PAGE_MAX, Clients
    from sbus.protocol.admin_results import ClientsResult

    found = _ask(context, Clients(limit=PAGE_MAX), ClientsResult)
    return [
        CompletionItem(str(client.client), help=f"{user_name(client.uid)} {client.program}")
        for client in (found.clients if found else ())
        if str(client.client).startswith(prefix)
    ]


def complete_users(context: click.Context, _parameter: click.Parameter, prefix: str) -> list[str]:
    """Names of users that the bus has accounts of."""
    from sbus.cli.terminal.user_names import user_name
    from sbus.protocol.admin import PAGE_MAX, Users
    from sbus.protocol.admin_results import UsersResult

    found = _ask(context, Users(limit=PAGE_MAX), UsersResult)
    names = [user_name(user.uid) for user in (found.users if found else ())]
    return [name for name in names if name.startswith(prefix)]


def complete_limits(_context: click.Context, _parameter: click.Parameter, prefix: str) -> list[str]:
    """Names of limits, up to the `=`."""
    from sbus.limits import UserLimits

    return [f"{name}=" for name in UserLimits.__struct_fields__ if name.startswith(prefix)]


def _ask(context: click.Context, request: "Request", expected: type[R]) -> R | None:
    """The answer of the bus, or None: an error message would end up on the command line."""
    from sbus.client.admin import AdminConnection

    options = context.find_root().params
    try:
        with AdminConnection(
            options.get("address"),
            address=options.get("admin_address"),
            timeout_seconds=COMPLETION_SECONDS_MAX,
        ) as admin:
            return admin.ask(request, expected)
    except (SbusError, OSError):
        return None
