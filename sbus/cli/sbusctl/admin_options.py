"""What several of the administrator's verbs have in common on the command line.

Completion asks the bus for what could be meant. It has to be quick, and to say nothing where it
cannot know. This module does not know the verbs.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sbus.errors import SbusError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from sbus.client.admin import AdminConnection

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

COMPLETION_SECONDS_MAX = 1.0


def as_json(command: F) -> F:
    """`--json`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="The answer as it came, in JSON on one line."
    )(command)


def interval(command: F) -> F:
    """`--interval S`."""
    return click.option(
        "--interval",
        "interval_seconds",
        metavar="SECONDS",
        type=click.FloatRange(min=0.1, max=86_400),
        default=2.0,
        show_default=True,
        help="Seconds between two looks.",
    )(command)


# -- completion ------------------------------------------------------------------------------------
def complete_clients(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> "list[CompletionItem]":
    """Numbers of clients, with their users and programs."""
    from click.shell_completion import CompletionItem

    from sbus.cli.terminal.user_names import user_name
    from sbus.protocol.admin import PAGE_MAX, Clients
    from sbus.protocol.admin_results import ClientsResult

    found = _ask(context, lambda admin: admin.ask(Clients(limit=PAGE_MAX), ClientsResult))
    return [
        CompletionItem(str(one.client), help=f"{user_name(one.uid)} {one.program}")
        for one in (found.clients if found else ())
        if str(one.client).startswith(begun)
    ]


def complete_users(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Names of users that have accounts with the bus."""
    from sbus.cli.terminal.user_names import user_name
    from sbus.protocol.admin import PAGE_MAX, Users
    from sbus.protocol.admin_results import UsersResult

    found = _ask(context, lambda admin: admin.ask(Users(limit=PAGE_MAX), UsersResult))
    names = [user_name(user.uid) for user in (found.users if found else ())]
    return [name for name in names if name.startswith(begun)]


def complete_limits(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Names of limits, up to the `=`."""
    from sbus.limits import UserLimits

    return [f"{name}=" for name in UserLimits.__struct_fields__ if name.startswith(begun)]


def _ask(context: click.Context, ask: "Callable[[AdminConnection], R]") -> R | None:
    """What the bus says at once, if it does: nobody asked for an error."""
    from sbus.client.admin import AdminConnection

    options = context.find_root().params
    try:
        with AdminConnection(
            options.get("address"),
            address=options.get("admin_address"),
            timeout_seconds=COMPLETION_SECONDS_MAX,
        ) as admin:
            return ask(admin)
    except (SbusError, OSError):
        return None
