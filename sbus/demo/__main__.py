"""The command line of the demo, `python -m sbus.demo`."""

import os
import sys

import click
import trio

from sbus.demo.run import run
from sbus.errors import SbusError

SECONDS_MAX = 60.0
"""Every message is kept until the end, so there must be one."""


@click.command()
@click.option("--workers", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, SECONDS_MAX),
    default=5.0,
    show_default=True,
    help="How long to publish before everything is added up.",
)
@click.option("--stay", is_flag=True, help="Keep the bus up afterwards, to try it, until Ctrl-C.")
@click.option(
    "--pipeline/--no-pipeline",
    default=True,
    help="Record it all, and have Spark make a page of it at the end.  [default: pipeline]",
)
def main(workers: int, seconds: float, stay: bool, pipeline: bool) -> None:
    """Show the bus at work on this host's own data.

    Ends with 0 when every subscriber received exactly what was published for it.
    """
    try:
        status = trio.run(
            lambda: run(workers=workers, seconds=seconds, stay=stay, pipeline=pipeline)
        )
    except* SbusError as group:
        for line in _texts(group):
            click.echo(f"demo: {line}", err=True)
        sys.exit(1)
    except* BrokenPipeError:
        # Nobody reads what the demo prints any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(status)


def _texts(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for inner in error.exceptions for text in _texts(inner)]
    return [str(error)]


if __name__ == "__main__":
    main()
