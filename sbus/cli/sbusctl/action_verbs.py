"""The verbs of `sbusctl` that change something: kick, move, limit, reload, upgrade, drain."""

import click

from sbus.cli.sbusctl.shared_options import (
    SelectedBus,
    complete_clients,
    complete_limits,
    complete_users,
    json_option,
    verb,
)

_UPGRADE_SECONDS_MAX = 60.0
"""The bus gives a new program up sooner."""
_client_argument = click.argument(
    "client", type=click.IntRange(min=0, max=2**63 - 1), shell_complete=complete_clients
)


@verb("sbusctl kick 4711", "sbusctl kick 4711 --text 'please update your client'")
@_client_argument
@click.option("--text", default="", metavar="TEXT", help="Reason to send to the client.")
@json_option
def kick(selected: SelectedBus, client: int, text: str, as_json: bool) -> None:
    """Disconnect CLIENT, a number that `sbusctl clients` shows."""
    from sbus.protocol.admin import Kick

    selected.ask_and_show(Kick(client=client, text=text), as_json=as_json)


@verb("sbusctl move 4711 3")
@_client_argument
@click.argument("worker", type=click.IntRange(min=0, max=63))
@json_option
def move(selected: SelectedBus, client: int, worker: int, as_json: bool) -> None:
    """Have WORKER serve CLIENT, a number that `sbusctl clients` shows.

    The client notices nothing. It is not moved while messages wait for it, or while it waits.
    """
    from sbus.protocol.admin import Move

    selected.ask_and_show(Move(client=client, worker=worker), as_json=as_json)


@verb("sbusctl limit alice", "sbusctl limit alice connections_max=100 messages_per_second_max=5000")
@click.argument("user", shell_complete=complete_users)
@click.argument("assignments", nargs=-1, metavar="[NAME=VALUE]...", shell_complete=complete_limits)
@json_option
def limit(selected: SelectedBus, user: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """Show or change the limits of USER.

    USER is a name or an id. Without NAME=VALUE, all limits are shown. A change takes effect at
    once, for all connections of the user, until the bus ends or reloads its configuration.
    """
    from sbus.cli.limit_options import parse_user_limits
    from sbus.protocol.admin import Limit
    from sbus.unix.users import user_id

    request = Limit(uid=user_id(user), limits=parse_user_limits(assignments))
    selected.ask_and_show(request, as_json=as_json)


@verb("sbusctl reload")
@json_option
def reload(selected: SelectedBus, as_json: bool) -> None:
    """Reload the configuration file of the bus.

    If anything in the file is wrong, nothing changes.
    """
    from sbus.protocol.admin import Reload

    selected.ask_and_show(Reload(), as_json=as_json)


@verb("sbusctl upgrade")
@json_option
def upgrade(selected: SelectedBus, as_json: bool) -> None:
    """Have the installed program take the place of the one that runs.

    The bus starts its command line again, which reads the configuration anew. Clients stay
    connected and lose nothing. If the new program cannot start, the bus serves as before.
    """
    from sbus.protocol.admin import Upgrade

    selected.ask_and_show(Upgrade(), as_json=as_json, timeout_seconds=_UPGRADE_SECONDS_MAX)


@verb("sbusctl drain", "sbusctl drain --timeout 30 --wait && systemctl start sbusd")
@click.option(
    "--timeout",
    "timeout_seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0, max=1e9),
    help="Disconnect the clients that are left after this time; by default, wait for the last.",
)
@click.option("--wait", is_flag=True, help="Return when the bus has ended.")
@json_option
def drain(selected: SelectedBus, timeout_seconds: float | None, wait: bool, as_json: bool) -> None:
    """Accept no more clients, and end the bus when the last one leaves."""
    from sbus.cli.sbusctl.admin_requests import ask_and_show, wait_for_end
    from sbus.protocol.admin import Drain

    with selected.connect_admin() as admin:
        ask_and_show(admin, Drain(timeout_seconds=timeout_seconds), as_json=as_json)
        if wait:
            wait_for_end(admin)
