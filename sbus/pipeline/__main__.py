"""`python -m sbus.pipeline`: the table of verbs, whose options are in `cli/verbs.py`."""

from typing import NoReturn

import click

from sbus.cli.terminal.exit_status import CommandGroup, run_command
from sbus.pipeline.cli import verbs

COMMAND = "sbus.pipeline"


@click.group(
    COMMAND,
    cls=CommandGroup,
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
    """Run Spark jobs on a recording of a bus, which `sbusctl record` made."""


def main() -> NoReturn:
    """Run the command and exit."""
    run_command(pipeline, f"python -m {COMMAND}")


if __name__ == "__main__":
    main()
