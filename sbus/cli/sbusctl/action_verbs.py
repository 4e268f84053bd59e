"""The verbs of `sbusctl` that change something: kick, limit, reload, drain.

This module holds no logic but what it says when it is done.
"""

import click

from sbus.cli.sbusctl.admin_options import (
    as_json,
    complete_clients,
    complete_limits,
    complete_users,
)
from sbus.cli.sbusctl.target import Target


@click.command(
    epilog="""\b
Examples:
  sbusctl kick 4711
  sbusctl kick 4711 --text 'please update your client'"""
)
@click.argument(
    "client", type=click.IntRange(min=0, max=2**63 - 1), shell_complete=complete_clients
)
@click.option("--text", default="", metavar="TEXT", help="What the client is told.")
@as_json
@click.pass_obj
def kick(target: Target, client: int, text: str, as_json: bool) -> None:
    """Disconnect CLIENT, a number that `sbusctl clients` shows."""
    from sbus.cli.sbusctl.answers import show
    from sbus.cli.terminal.tables import paragraph
    from sbus.cli.terminal.user_names import user_name
    from sbus.protocol.admin import Kick
    from sbus.protocol.admin_results import KickResult

    with target.connect_admin() as admin:
        result = admin.ask(Kick(client=client, text=text), KickResult)
    who = f"{user_name(result.uid)}, pid {result.pid}, {result.program or 'a program that ended'}"
    show(
        result,
        as_json,
        lambda result, width: paragraph(f"client {result.client} is disconnected: {who}", width),
    )


@click.command(
    epilog="""\b
Examples:
  sbusctl limit alice
  sbusctl limit alice connections_max=100 messages_per_second_max=5000"""
)
@click.argument("user", shell_complete=complete_users)
@click.argument("assignments", nargs=-1, metavar="[NAME=VALUE]...", shell_complete=complete_limits)
@as_json
@click.pass_obj
def limit(target: Target, user: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """Show or change what USER may have of the bus.

    USER is a name or a number. Without NAME=VALUE, all limits are shown. A change holds at once,
    for all connections of the user, until the bus ends or reads its configuration again.
    """
    from sbus.cli.sbusctl.answers import show
    from sbus.cli.sbusd.limit_options import parse_user_limits
    from sbus.cli.views.users_view import limit_lines
    from sbus.protocol.admin import Limit
    from sbus.protocol.admin_results import LimitResult
    from sbus.unix.users import user_id

    request = Limit(uid=user_id(user), limits=parse_user_limits(assignments))
    with target.connect_admin() as admin:
        show(admin.ask(request, LimitResult), as_json, limit_lines)


@click.command(epilog="\b\nExample:\n  sbusctl reload")
@as_json
@click.pass_obj
def reload(target: Target, as_json: bool) -> None:
    """Let the bus read its configuration file again.

    If there is anything wrong with the file, nothing changes.
    """
    from sbus.cli.sbusctl.answers import show, warn_of_unanswered
    from sbus.cli.terminal.tables import paragraph
    from sbus.cli.terminal.units import enumerated
    from sbus.protocol.admin import Reload
    from sbus.protocol.admin_results import ReloadResult

    with target.connect_admin() as admin:
        result = admin.ask(Reload(), ReloadResult)
    said = [f"in force now: {enumerated(result.applied) if result.applied else 'nothing new'}"]
    if result.needs_restart:
        said.append(f"as before until the bus is restarted: {enumerated(result.needs_restart)}")
    show(
        result,
        as_json,
        lambda _, width: [line for words in said for line in paragraph(words, width)],
    )
    warn_of_unanswered(result.unanswered)


@click.command(
    epilog="""\b
Examples:
  sbusctl drain
  sbusctl drain --timeout 30 --wait && systemctl start sbusd"""
)
@click.option(
    "--timeout",
    "timeout_seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0, max=1e9),
    help="Disconnect who is still there after so long; without it, the bus waits for the last.",
)
@click.option("--wait", is_flag=True, help="Return when the bus has ended.")
@as_json
@click.pass_obj
def drain(target: Target, timeout_seconds: float | None, wait: bool, as_json: bool) -> None:
    """Let nobody in any more, and end the bus with its last client."""
    from sbus.cli.sbusctl.answers import show, wait_for_end
    from sbus.cli.terminal.tables import paragraph
    from sbus.cli.terminal.units import counted
    from sbus.protocol.admin import Drain
    from sbus.protocol.admin_results import DrainResult

    with target.connect_admin() as admin:
        show(
            admin.ask(Drain(timeout_seconds=timeout_seconds), DrainResult),
            as_json,
            lambda result, width: paragraph(f"{counted(result.clients, 'client')} left", width),
        )
        if wait:
            wait_for_end(admin)
