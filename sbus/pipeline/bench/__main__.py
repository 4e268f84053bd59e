"""`python -m sbus.pipeline.bench`: how fast a bus is recorded, and how fast Spark reads."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from sbus.errors import SbusError
from sbus.pipeline.bench.recording_rate import NUMBER_DIGITS, Load, measure


@click.group()
def main() -> None:
    """Measurements of the recorder and of Spark."""


@main.command("record")
@click.option("--messages", type=click.IntRange(min=1000), default=1_000_000, show_default=True)
@click.option(
    "--payload-bytes", type=click.IntRange(min=NUMBER_DIGITS), default=100, show_default=True
)
@click.option(
    "--rate",
    "rates",
    type=click.IntRange(min=0),
    multiple=True,
    default=(100_000, 150_000, 0),
    show_default=True,
    help="Messages per second; 0 for as many as the bus takes. Repeatable.",
)
@click.option("--publishers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=tempfile.gettempdir,
    help="Where it records for the time of the measurement: on the disk to be measured.",
)
@click.option("--plain", is_flag=True, help="Record by a subscription, without the admin socket.")
@click.option("--json", "as_json", is_flag=True, help="Every figure, as JSON.")
def _record(rates: tuple[int, ...], directory: Path, as_json: bool, **load: Any) -> None:
    """How many messages per second are recorded without loss. The bus and the publishers run on the
    first CPU, the recorder on the last one."""
    result = measure([Load(rate=rate, **load) for rate in rates], directory)
    click.echo(result.as_json() if as_json else result.as_text())


@main.command("spark")
@click.option("--rows", type=click.IntRange(min=1000), default=5_000_000, show_default=True)
def _spark(rows: int) -> None:
    """How fast Spark reads a recording."""
    from sbus.pipeline.bench.spark_reading import measure

    with tempfile.TemporaryDirectory() as temporary:
        measure(Path(temporary), rows)


if __name__ == "__main__":
    try:
        main(prog_name="python -m sbus.pipeline.bench")
    except SbusError as error:
        click.echo(f"failed: {error}", err=True)
        sys.exit(1)
