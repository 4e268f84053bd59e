"""What verbs are made of: the options before them, those that several have, and completion.

Completion asks the bus. It has to be quick, and silent where the bus does not answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from sbus.client.link import LinkOptions
from sbus.errors import SbusError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from msgspec import Struct

    from sbus.client.admin import AdminConnection
    from sbus.protocol.admin import Request

R = TypeVar("R", bound="Struct")

COMPLETION_SECONDS_MAX = 1.0


@dataclass(frozen=True, slots=True)
class SelectedBus:
    """The options before the verb: which bus, and how to talk to it."""

    address: str | None
    """None for the default bus."""
    admin_address: str | None
    """None for the admin socket that belongs to the bus."""
    link: LinkOptions

    def connect_admin(self, timeout_seconds: float = 30.0) -> "AdminConnection":
        """Connect to the admin socket; the caller closes it. Raises AddressError."""
        from sbus.client.admin import AdminConnection

        return AdminConnection(
            self.address, address=self.admin_address, timeout_seconds=timeout_seconds
        )

    def ask_and_show(
        self, request: "Request", *, as_json: bool, timeout_seconds: float = 30.0
    ) -> None:
        """Send a request to the admin socket, and print the result."""
        from sbus.cli.sbusctl.admin_requests import ask_and_show

        with self.connect_admin(timeout_seconds) as admin:
            ask_and_show(admin, request, as_json=as_json)


def verb(*examples: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a verb of a function, whose first parameter is the selected bus."""
    title = "Examples" if len(examples) > 1 else "Example"
    epilog = "\n  ".join([f"\b\n{title}:", *examples])
    return lambda function: click.command(epilog=epilog)(click.pass_obj(function))


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
