"""The verbs of `sbusctl` that look at who uses the bus: clients, subs, users, explain, me.

What is shown is made in `clients_view.py` and `users_view.py`. This module holds no logic.
"""

import os

import click

import sbus
from sbus.cli.sbusctl.admin_options import as_json, complete_users
from sbus.cli.sbusctl.target import Target

ME_SECONDS_MAX = 10.0


@click.command(
    epilog="""\b
Examples:
  sbusctl clients
  sbusctl clients --user alice
  sbusctl clients --json | jq '.clients[] | select(.activity.stalled)'"""
)
@click.option(
    "-u",
    "--user",
    metavar="USER",
    shell_complete=complete_users,
    help="Only the clients of this user, given by name or number.",
)
@as_json
@click.pass_obj
def clients(target: Target, user: str | None, as_json: bool) -> None:
    """Show who is connected, and what each does.

    SUBS are its subscriptions, IN the messages it published, OUT those it received, LOST those
    discarded because it reads too slowly, and BACKLOG those that wait for it. STATE is stalled for
    a client without room whose publishers are held back, held for one of those, paced for one
    whose user publishes too fast, waits for one for which the bus has no room just now, and unknown
    where its worker did not answer.
    """
    from sbus.cli.sbusctl.answers import all_clients, show, warn_of_unanswered
    from sbus.cli.views.clients_view import clients_lines
    from sbus.unix.users import user_id

    uid = None if user is None else user_id(user)
    with target.connect_admin() as admin:
        result = all_clients(admin, uid)
    show(result, as_json, clients_lines)
    warn_of_unanswered(result.unanswered)


@click.command(
    epilog="""\b
Examples:
  sbusctl subs
  sbusctl subs 'lamps/*/state'"""
)
@click.argument("pattern", type=os.fsencode, default="")
@as_json
@click.pass_obj
def subs(target: Target, pattern: bytes, as_json: bool) -> None:
    """Show who subscribes to what.

    With a PATTERN, which may be a key, only subscriptions that have keys in common with it.
    """
    from sbus.cli.sbusctl.answers import all_subscriptions, show, warn_of_unanswered
    from sbus.cli.views.clients_view import subscriptions_lines
    from sbus.protocol.text import to_text

    with target.connect_admin() as admin:
        result = all_subscriptions(admin, to_text(pattern))
    show(result, as_json, subscriptions_lines)
    warn_of_unanswered(result.unanswered)


@click.command(epilog="\b\nExample:\n  sbusctl users")
@as_json
@click.pass_obj
def users(target: Target, as_json: bool) -> None:
    """Show what each user has, and may have.

    What it may have of the bus stands behind the /. HELD is for how long in the last minute its
    clients held publishers back, LOST are messages discarded for its clients. `sbusctl limit` shows
    and changes what one may have.
    """
    from sbus.cli.sbusctl.answers import all_users, show
    from sbus.cli.views.users_view import users_lines

    with target.connect_admin() as admin:
        show(all_users(admin), as_json, users_lines)


@click.command(
    epilog="""\b
Examples:
  sbusctl explain lamps/3/state
  sbusctl explain '!/cred/100/1000//reply'"""
)
@click.argument("key", type=os.fsencode)
@as_json
@click.pass_obj
def explain(target: Target, key: bytes, as_json: bool) -> None:
    """Show who would receive a message under KEY.

    And who would not, although a pattern matches, and why. Nothing is published.
    """
    from sbus.cli.sbusctl.answers import show, warn_of_unanswered
    from sbus.cli.views.clients_view import explain_lines
    from sbus.protocol.admin import Explain
    from sbus.protocol.admin_results import ExplainResult
    from sbus.protocol.text import to_text

    with target.connect_admin() as admin:
        result = admin.ask(Explain(key=to_text(key)), ExplainResult)
    show(result, as_json, explain_lines)
    warn_of_unanswered(result.unanswered)


@click.command(epilog="\b\nExample:\n  sbusctl me")
@as_json
@click.pass_obj
def me(target: Target, as_json: bool) -> None:
    """Show what the bus knows about you.

    Your clients, subscriptions, losses and limits. Anybody may ask; the answer is about the user
    who asks and includes this very connection.
    """
    from sbus.cli.sbusctl.answers import show, warn_of_unanswered
    from sbus.cli.views.users_view import me_lines

    with sbus.blocking.connect(
        target.address, timeout_seconds=ME_SECONDS_MAX, **target.options
    ) as bus:
        result = bus.me(timeout_seconds=ME_SECONDS_MAX)
    show(result, as_json, me_lines)
    warn_of_unanswered(result.unanswered)
