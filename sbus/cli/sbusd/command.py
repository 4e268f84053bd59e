"""`sbusd`, the daemon's command line.

Turns words into a bus and errors into one line and an exit status: 0 for a bus that ended as it was
told to, 1 for what cannot be, 2 for what cannot be understood. Imports as little as it can, because
a user waits: the heavy parts come when they are needed. An option has a field of the same name in
the file's table `[bus]` (`sbus.broker.config.file.BusTable`). This module knows nothing of sockets,
processes or the broker.
"""

import os
import sys
from typing import Any

import click
from click.core import ParameterSource

from sbus.cli.sbusd.start import check, run
from sbus.cli.sbusd.words import Words
from sbus.cli.terminal.error_output import report_error
from sbus.errors import SbusError
from sbus.unix.address import DEFAULT_ADDRESS
from sbus.version import __version__

DEFAULT_PIDFILE = "/run/sbus.pid"
WORKERS_MAX = 64
"""As `sbus.shared.shared_memory.WORKERS_MAX`, whose import would make every start slower."""


def available_workers() -> int:
    """As many workers as this process may use processors, within what the bus can have."""
    return min(len(os.sched_getaffinity(0)), WORKERS_MAX)


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"sbusd {__version__}")
        context.exit()


def _print_limits(
    context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    if "help" in values:
        from sbus.cli.sbusd.limit_options import describe_limits

        click.echo(describe_limits())
        context.exit()
    return values


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  sbusd -f -a /tmp/bus --workers 2
  sbusd --others --config /etc/sbus.toml
  sbusd --check-config /etc/sbus.toml""",
)
@click.option(
    "-a",
    "--address",
    show_default=f"the socket of the service manager, else {DEFAULT_ADDRESS}",
    help="A path; /dev/fd/N, a socket passed down; /dev/unix/abstract, a random abstract address, "
    "which is printed; or /dev/unix/abstract/HEX, a given one.",
)
@click.option(
    "-f", "--foreground", is_flag=True, help="Stay; input and output are closed when it is ready."
)
@click.option(
    "-p",
    "--pidfile",
    default=DEFAULT_PIDFILE,
    show_default=True,
    help="Where the process id is written in the background; /dev/null for nowhere.",
)
@click.option(
    "-u",
    "--user",
    "users",
    multiple=True,
    help="A user, by name or id, who may connect; others may not. Repeatable.",
)
@click.option("-c", "--exit-when-empty", is_flag=True, help="End when the last client has left.")
@click.option("-g", "--group", is_flag=True, help="Let the group connect.")
@click.option("-o", "--others", is_flag=True, help="Let everybody connect.")
@click.option("-r", "--replace", is_flag=True, help="Replace files that are at the addresses.")
@click.option(
    "--admin-address",
    metavar="ADDRESS",
    show_default="that of the bus, and .admin",
    help="Where sbusctl administers the bus; none for nowhere.",
)
@click.option(
    "--admin-group",
    metavar="GROUP",
    help="A group whose members may do so, besides root and the bus's own user.",
)
@click.option(
    "--refuse-descriptors",
    is_flag=True,
    help="Refuse packets with file descriptors attached instead of dropping those (Linux 6.16).",
)
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=available_workers,
    show_default="the processors it may use",
    help="Processes that serve clients.",
)
@click.option(
    "--dialect",
    type=click.Choice(["slash", "dot"]),
    default="slash",
    show_default=True,
    help="What separates the segments of a key.",
)
@click.option(
    "--soft",
    type=click.Choice(["queue", "discard", "block", "error"]),
    default="queue",
    show_default=True,
    help="What becomes of a message for a client whose socket is full, unless the client chooses.",
)
@click.option(
    "--hard",
    type=click.Choice(["discard", "block", "error"]),
    default="discard",
    show_default=True,
    help="What becomes of it when the client's backlog is full as well.",
)
@click.option(
    "--order",
    type=click.Choice(["queue", "stack", "random"]),
    default="queue",
    show_default=True,
    help="How a backlog is sent: oldest first, newest first, largest first.",
)
@click.option(
    "--config",
    metavar="FILE",
    help="A TOML file with any of these options, limits, limits of single users, and access rules. "
    "What the command line says goes before it. None is read unless it is named here.",
)
@click.option(
    "--check-config",
    metavar="FILE",
    help="Check such a file, together with the other options, and exit.",
)
@click.option(
    "--print-config",
    is_flag=True,
    help="Print what holds, of the command line, its file and the defaults, as such a file, and "
    "exit.",
)
@click.option(
    "--limit",
    "limits",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_print_limits,
    help="Change a limit; `--limit help` lists them with their defaults. Repeatable.",
)
@click.option(
    "--log",
    type=click.Choice(["auto", "journal", "stderr"]),
    default="auto",
    show_default=True,
    help="Where events are logged; auto: to the journal, where standard error leads there.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.pass_context
def sbusd(
    context: click.Context,
    /,
    config: str | None,
    check_config: str | None,
    print_config: bool,
    limits: tuple[str, ...],
    **options: Any,
) -> None:
    """A message bus for the processes of this host."""
    file = config if check_config is None else check_config
    given = frozenset(name for name in options if _is_given(context, name))
    words = Words(options=options, given=given, limits=limits, file=file)
    plan = words.understand()
    if print_config or check_config is not None:
        check(plan)
    if print_config:
        from sbus.cli.sbusd.config_output import as_toml

        click.echo(as_toml(plan))
    elif check_config is not None:
        click.echo(f"{check_config}: {plan.file}")
    else:
        run(plan)


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def main() -> None:
    """Run the command and exit."""
    try:
        status = sbusd.main(prog_name="sbusd", standalone_mode=False)
    except click.UsageError as error:
        report_error(f"{error.format_message()} (sbusd --help shows the options)")
        status = 2
    except SbusError as error:
        report_error(str(error))
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
