"""`sbusctl record`: the words of the verb.

What it does is in `recorder.py`, and loaded when it is done, for it needs a package that is only
there with the extra `recorder`. This module holds no logic.
"""

import os
import socket
from functools import partial
from pathlib import Path

import click

from sbus.cli.report import report_error
from sbus.cli.target import Target
from sbus.client.link import default_address
from sbus.errors import ConfigurationError
from sbus.unix.address import parse_address
from sbus.unix.notify import Notifier


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.argument("patterns", type=os.fsencode, nargs=-1, metavar="[PATTERN]...")
@click.pass_obj
def record(target: Target, directory: Path, patterns: tuple[bytes, ...]) -> None:
    """Record what crosses the bus in DIR."""
    try:
        import trio

        from sbus.pipeline.recorder import Plan
        from sbus.pipeline.recorder import record as run
        from sbus.pipeline.store import Origin, Rolling
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyarrow", "numpy"):
            raise
        raise ConfigurationError(
            f"recording needs the package {error.name}: pip install 'sbus[recorder]'"
        ) from error
    address = target.address or default_address()
    plan = Plan(
        directory=directory.absolute(),
        origin=Origin.of(socket.gethostname(), parse_address(address).format()),
        address=address,
        patterns=patterns or (b"",),
        options=target.options,
        flush_seconds=0.1,
        flush_rows=10_000,
        rolling=Rolling(128 << 20, 600.0),
    )
    say = partial(report_error, command="sbusctl")
    trio.run(run, plan, Notifier.of_environment(say), say)
