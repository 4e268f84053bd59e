"""`sbusd`, the daemon's command line.

The exit status is 0 for a bus that ended as it was told to, 1 for an error, which is one line on
standard error, and 2 for a command line that cannot be understood. Heavy modules are imported when
they are needed, so that sbusd starts fast.
"""

import os
import sys
from typing import Any, Final

import click
from click.core import ParameterSource

from sbus.bus_options import OPTIONS, PREDECESSOR_VARIABLE, WORKERS_MAX, Kind, Option
from sbus.cli.sbusd.plan import CommandLine
from sbus.cli.sbusd.start import run
from sbus.cli.terminal.error_output import report_error
from sbus.compiled import STEP
from sbus.errors import SbusError
from sbus.unix.notify import has_service_manager
from sbus.version import describe

_METAVARS: Final = {
    Kind.ADDRESS: "ADDRESS",
    Kind.PATH: "FILE",
    Kind.GROUP: "GROUP",
    Kind.USER: "USER",
    Kind.USERS: "USER",
}


def _click_option(option: Option) -> click.Option:
    types = {
        Kind.CHOICE: click.Choice(option.choices),
        Kind.WORKERS: click.IntRange(1, WORKERS_MAX),
        Kind.ADDRESS: click.Path(readable=False),
        Kind.PATH: click.Path(readable=False),
    }
    flags = [f"-{option.letter}", option.flag] if option.letter else [option.flag]
    return click.Option(
        [*flags, option.name],
        type=types.get(option.kind),
        is_flag=option.kind is Kind.SWITCH,
        multiple=option.kind is Kind.USERS,
        default=option.default,
        show_default=option.default_text or bool(option.default),
        metavar=_METAVARS.get(option.kind),
        help=option.help,
    )


def _print_limits(
    context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    if "help" in values:
        from sbus.cli.limit_options import describe_limits

        click.echo(describe_limits())
        context.exit()
    return values


@click.command(
    params=[_click_option(option) for option in OPTIONS],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  sbusd -f -a /tmp/bus --workers 2
  sbusd --others --config /etc/sbus.toml
  sbusd --check-config /etc/sbus.toml""",
)
@click.option(
    "--config",
    type=click.Path(readable=False),
    metavar="FILE",
    help="A TOML file with any of these options, limits, limits of single users, and access rules. "
    "The command line has precedence over it. No file is read unless it is named here.",
)
@click.option(
    "--check-config",
    type=click.Path(readable=False),
    metavar="FILE",
    help="Check such a file, together with the other options, and exit.",
)
@click.option(
    "--print-config",
    is_flag=True,
    help="Print the effective configuration, from the command line, its file and the defaults, as "
    "such a file, and exit.",
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
    "--take-over",
    is_flag=True,
    help="Take the place of the bus that runs at this address, with its sockets, its pidfile and "
    "its clients.",
)
@click.version_option(
    describe(STEP),
    prog_name="sbusd",
    message="%(prog)s %(version)s",
    help="Print the version and exit.",
)
@click.pass_context
def sbusd(
    context: click.Context,
    /,
    config: str | None,
    check_config: str | None,
    print_config: bool,
    take_over: bool,
    limits: tuple[str, ...],
    **options: Any,
) -> None:
    """A message bus for the processes of this host."""
    given = {name: value for name, value in options.items() if _is_given(context, name)}
    file = config if check_config is None else check_config
    # With nobody there to read an error, the bus starts without the names, and looks them up again.
    checks_only = print_config or check_config is not None
    is_first = not take_over and PREDECESSOR_VARIABLE not in os.environ
    may_miss_names = has_service_manager() and is_first and not checks_only
    plan = CommandLine(given, limits, file).plan(may_miss_names=may_miss_names)
    if checks_only:
        plan.check()
    if print_config:
        click.echo(plan.format())
    elif check_config is not None:
        click.echo(f"{check_config}: {plan.file}")
    else:
        run(plan, take_over=take_over)


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _report(text: str) -> None:
    """Print an error; the bus that has started this program, if one has, gets it, too."""
    if PREDECESSOR_VARIABLE in os.environ:
        from sbus.cli.sbusd.predecessor import link_of_environment, report_failure

        report_failure(link_of_environment(), text)
    report_error(text)


def main() -> None:
    """Run the command and exit."""
    try:
        status = sbusd.main(prog_name="sbusd", standalone_mode=False)
    except click.UsageError as error:
        _report(f"{error.format_message()} (sbusd --help shows the options)")
        status = 2
    except SbusError as error:
        _report(str(error))
        status = 1
    sys.exit(status)
