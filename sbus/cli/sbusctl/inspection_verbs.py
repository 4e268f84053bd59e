"""The verbs of `sbusctl` that show who uses the bus: clients, subs, users, explain, me."""

import os

import click

from sbus.cli.sbusctl.shared_options import SelectedBus, complete_users, json_option, verb
from sbus.errors import AddressError, NobodyListens


@verb(
    "sbusctl clients",
    "sbusctl clients --user alice",
    "sbusctl clients --json | jq '.clients[] | select(.activity.stalled)'",
)
@click.option(
    "-u",
    "--user",
    metavar="USER",
    shell_complete=complete_users,
    help="Show only the clients of this user, a name or an id.",
)
@json_option
def clients(selected: SelectedBus, user: str | None, as_json: bool) -> None:
    """Show the connected clients and what each does.

    SUBS counts subscriptions, IN messages published, OUT messages received, LOST messages
    discarded because the client reads too slowly, and BACKLOG messages that wait for it.

    STATE is stalled for a client that has no room and holds its publishers back, held for such a
    publisher, paced for a client whose user publishes too fast, waits for one that the bus has no
    room for just now, and unknown where the worker did not answer.
    """
    from sbus.protocol.admin import PAGE_MAX, Clients
    from sbus.unix.users import user_id

    request = Clients(uid=None if user is None else user_id(user), limit=PAGE_MAX)
    selected.ask_and_show(request, as_json=as_json)


@verb("sbusctl subs", "sbusctl subs 'lamps/*/state'")
@click.argument("pattern", type=os.fsencode, default="")
@json_option
def subs(selected: SelectedBus, pattern: bytes, as_json: bool) -> None:
    """Show the subscriptions of all clients.

    With a PATTERN, which may be a key, show only the subscriptions that have keys in common with
    it.
    """
    from sbus.protocol.admin import PAGE_MAX, Subs
    from sbus.protocol.text import to_text

    selected.ask_and_show(Subs(pattern=to_text(pattern), limit=PAGE_MAX), as_json=as_json)


@verb("sbusctl users")
@json_option
def users(selected: SelectedBus, as_json: bool) -> None:
    """Show what each user uses, and its limits.

    The limit stands after the /. HELD is how long the user's clients held publishers back in the
    last minute; LOST counts messages discarded for its clients. `sbusctl limit` shows and changes
    the limits of one user.
    """
    from sbus.protocol.admin import PAGE_MAX, Users

    selected.ask_and_show(Users(limit=PAGE_MAX), as_json=as_json)


@verb("sbusctl explain lamps/3/state", "sbusctl explain '!/cred/100/1000//reply'")
@click.argument("key", type=os.fsencode)
@json_option
def explain(selected: SelectedBus, key: bytes, as_json: bool) -> None:
    """Show which clients would receive a message under KEY.

    Also show those that would not although they have a pattern that matches, and why, and whether
    the message would cross the bridge of the bus, if there is one. Nothing is published, except a
    secret message that asks the bridge.
    """
    from sbus.protocol.admin import Explain
    from sbus.protocol.text import to_text

    selected.ask_and_show(Explain(key=to_text(key)), as_json=as_json)
    if not as_json and selected.link["dialect"] == "slash":
        _show_crossing(selected, key)


def _show_crossing(selected: SelectedBus, key: bytes) -> None:
    from sbus.cli.sbusctl.bridge_request import ask_bridge
    from sbus.cli.terminal.error_output import report_error
    from sbus.cli.terminal.screen import Screen
    from sbus.cli.views.bridges_view import crossing_lines

    try:
        status = ask_bridge(selected)
    except (NobodyListens, AddressError):  # the admin socket may be that of another address
        return
    except TimeoutError as error:
        report_error(f"{error}: whether it crosses the bridge is unknown", command="sbusctl")
        return
    screen = Screen()
    screen.show(crossing_lines(status, key, screen.width))


@verb("sbusctl me")
@json_option
def me(selected: SelectedBus, as_json: bool) -> None:
    """Show what the bus knows about you.

    Your clients, subscriptions, losses and limits. Every user may ask; the answer includes this
    very connection.
    """
    from sbus.cli.sbusctl.admin_requests import show
    from sbus.cli.views.users_view import me_lines

    show(selected.me(), me_lines, as_json=as_json)
