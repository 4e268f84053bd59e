"""`python -m sbus.pipeline`: a table of verbs, and how they end.

A verb's options are in `verbs.py`. This module holds no logic.
"""

import sys
from typing import Any

import click

from sbus.cli.terminal.error_output import report_error
from sbus.cli.terminal.exit_status import conventional_endings
from sbus.pipeline import verbs
from sbus.unix.standard_streams import hold_standard_numbers

COMMAND = "sbus.pipeline"


class _Verbs(click.Group):
    """Ends as `exit_status.py` says, before click has its own idea of that."""

    def invoke(self, ctx: click.Context) -> Any:
        with conventional_endings(COMMAND):
            return super().invoke(ctx)


@click.group(
    cls=_Verbs,
    commands=[verb for verb in vars(verbs).values() if isinstance(verb, click.Command)],
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  python -m sbus.pipeline report /var/lib/sbus/recording --out report.html
  python -m sbus.pipeline hot-keys /var/lib/sbus/recording --by bytes
  python -m sbus.pipeline traffic /var/lib/sbus/recording --window 10s --out traffic.parquet""",
)
def pipeline() -> None:
    """Ask Spark about what crossed a bus, as `sbusctl record` wrote it down."""


def main() -> None:
    """Run the command and exit."""
    hold_standard_numbers()
    try:
        status = pipeline.main(prog_name=f"python -m {COMMAND}", standalone_mode=False)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else COMMAND
        report_error(f"{error.format_message()} (see {path} --help)", command=COMMAND)
        status = error.exit_code
    sys.exit(status)


if __name__ == "__main__":
    main()
