"""`sbusctl`: the table of verbs, and the options before them.

The command must start fast. So a verb is imported when it is used, and a verb imports heavy
packages when it runs.
"""

import importlib
import sys
from typing import NoReturn

import click

from sbus.cli.sbusctl.shared_options import SelectedBus
from sbus.cli.terminal.exit_status import CommandGroup, run_command
from sbus.client.options import LinkOptions
from sbus.version import describe

COMMAND = "sbusctl"

VERBS_BY_MODULE = {
    "sbus.cli.sbusctl.action_verbs": (*("drain", "kick", "limit", "move", "reload", "upgrade"),),
    "sbus.cli.sbusctl.bench_verb": ("bench",),
    "sbus.cli.sbusctl.bridge_verbs": ("bridge", "bridges"),
    "sbus.cli.sbusctl.inspection_verbs": ("clients", "explain", "me", "subs", "users"),
    "sbus.cli.sbusctl.message_verbs": ("ping", "pub", "sub", "whoami"),
    "sbus.cli.sbusctl.metrics_verb": ("metrics",),
    "sbus.cli.sbusctl.presence_verbs": ("members",),
    "sbus.cli.sbusctl.request_verbs": ("last-values", "reply", "request"),
    "sbus.cli.sbusctl.statistics_verbs": ("stats", "top", "version", "workers"),
    "sbus.cli.sbusctl.stream_verbs": ("events", "monitor"),
    "sbus.pipeline.cli.export": ("export",),
    "sbus.pipeline.cli.record": ("record",),
}
"""Each module holds click commands of these names."""
VERBS = {verb: module for module, verbs in VERBS_BY_MODULE.items() for verb in verbs}
OTHER_NAMES = {"publish": "pub", "send": "pub", "subscribe": "sub", "listen": "sub"}
"""Of verbs, in other programs."""


class _Verbs(CommandGroup):
    """Imports a verb when it is asked for; `--help` and completion ask for all."""

    other_names = OTHER_NAMES

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        verb = getattr(importlib.import_module(VERBS[cmd_name]), cmd_name.replace("-", "_"))
        assert isinstance(verb, click.Command)
        return verb


def _print_version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from sbus.compiled import STEP

        click.echo(f"{COMMAND} {describe(STEP)}")
        context.exit()


@click.group(
    COMMAND,
    cls=_Verbs,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  sbusctl sub 'lamps/*/state'
  sbusctl -a /tmp/bus pub lamps/3/state on
  sbusctl sub --help""",
)
@click.option(
    "-a",
    "--address",
    type=click.Path(readable=False),
    metavar="ADDRESS",
    envvar="SBUS_ADDRESS",
    help="Address of the bus: a path, or /dev/unix/abstract/HEX.  "
    "[default: $SBUS_ADDRESS, else $XDG_RUNTIME_DIR/sbus.socket if it exists, else "
    "/run/sbus.socket]",
)
@click.option(
    "--admin-address",
    type=click.Path(readable=False),
    metavar="ADDRESS",
    envvar="SBUS_ADMIN_ADDRESS",
    help="Address of its admin socket, for the verbs that need it.  "
    "[default: $SBUS_ADMIN_ADDRESS, else beside the bus]",
)
@click.option(
    "--dialect",
    type=click.Choice(["slash", "dot"]),
    default="slash",
    show_default=True,
    help="Separator of a key's segments, as chosen when the bus was started.",
)
@click.option(
    "--wait",
    "wait_seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Wait for so long until there is a bus.",
)
@click.option(
    "--host",
    metavar="[USER@]HOST",
    help="Run the same command on that host, over ssh.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def sbusctl(
    context: click.Context,
    address: str | None,
    admin_address: str | None,
    dialect: str,
    wait_seconds: float,
    host: str | None,
) -> None:
    """Use and administer a message bus."""
    if host is not None:
        from sbus.cli.sbusctl.other_host import run_there

        options = [it for it in sbusctl.params if isinstance(it, click.Option)]
        with_values = {name for it in options if not it.is_flag for name in it.opts}
        run_there(host, sys.argv[1:], with_values)
    link = LinkOptions(dialect=dialect)
    context.obj = SelectedBus(address, admin_address, link, wait_seconds)


def main() -> NoReturn:
    """Run the command and exit."""
    run_command(sbusctl, COMMAND)
