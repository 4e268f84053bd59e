"""`sbusctl`, the command line for users of a bus, and for its administrator.

The table of verbs and the options before them. `exit_status.py` has the exit statuses. People and
scripts wait for this command, so a verb is imported when it is used, and imports what is heavy when
it needs that.
"""

import sys
from typing import Any

import click

import sbus
from sbus.cli.sbusctl.lazy_verbs import LazyVerbs
from sbus.cli.sbusctl.target import Target
from sbus.cli.terminal.error_output import report_error
from sbus.cli.terminal.exit_status import conventional_endings
from sbus.client.link import LinkOptions
from sbus.unix.standard_streams import hold_standard_numbers

COMMAND = "sbusctl"

VERBS = {
    "clients": "sbus.cli.sbusctl.inspection_verbs",
    "drain": "sbus.cli.sbusctl.action_verbs",
    "events": "sbus.cli.sbusctl.stream_verbs",
    "explain": "sbus.cli.sbusctl.inspection_verbs",
    "kick": "sbus.cli.sbusctl.action_verbs",
    "limit": "sbus.cli.sbusctl.action_verbs",
    "me": "sbus.cli.sbusctl.inspection_verbs",
    "metrics": "sbus.cli.sbusctl.metrics_verb",
    "monitor": "sbus.cli.sbusctl.stream_verbs",
    "ping": "sbus.cli.sbusctl.message_verbs",
    "pub": "sbus.cli.sbusctl.message_verbs",
    "record": "sbus.pipeline.record_verb",
    "reload": "sbus.cli.sbusctl.action_verbs",
    "stats": "sbus.cli.sbusctl.statistics_verbs",
    "sub": "sbus.cli.sbusctl.message_verbs",
    "subs": "sbus.cli.sbusctl.inspection_verbs",
    "top": "sbus.cli.sbusctl.statistics_verbs",
    "users": "sbus.cli.sbusctl.inspection_verbs",
    "version": "sbus.cli.sbusctl.statistics_verbs",
    "whoami": "sbus.cli.sbusctl.message_verbs",
    "workers": "sbus.cli.sbusctl.statistics_verbs",
}
"""The module of each verb."""


class _Verbs(click.Group):
    """Ends as `exit_status.py` says, before click has its own idea of that."""

    def invoke(self, ctx: click.Context) -> Any:
        with conventional_endings(COMMAND):
            return super().invoke(ctx)


@click.group(
    cls=_Verbs,
    commands=LazyVerbs(VERBS),
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
    help="Where the bus is: a path, or /dev/unix/abstract/HEX.  "
    "[default: $SBUS_ADDRESS, else /run/sbus.socket]",
)
@click.option(
    "--admin-address",
    envvar="SBUS_ADMIN_ADDRESS",
    help="Where its admin socket is, for the verbs that need it.  "
    "[default: $SBUS_ADMIN_ADDRESS, else beside the bus]",
)
@click.option(
    "--dialect",
    type=click.Choice(["slash", "dot"]),
    default="slash",
    show_default=True,
    help="What separates the segments of a key; the one the bus was started with.",
)
@click.version_option(sbus.__version__, prog_name=COMMAND, message="%(prog)s %(version)s")
@click.pass_context
def sbusctl(
    context: click.Context, address: str | None, admin_address: str | None, dialect: str
) -> None:
    """Talk to a message bus, and look after it."""
    context.obj = Target(address, admin_address, LinkOptions(dialect=dialect))


def main() -> None:
    """Run the command and exit."""
    hold_standard_numbers()
    try:
        status = sbusctl.main(prog_name=COMMAND, standalone_mode=False)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else COMMAND
        report_error(f"{error.format_message()} (see {path} --help)", command=COMMAND)
        status = error.exit_code
    sys.exit(status)


if __name__ == "__main__":
    main()
