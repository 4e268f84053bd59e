"""Explores the model in the sizes that take longer: `python -m tests.model`."""

import tempfile
from pathlib import Path

import click

from tests.model.exploration import ONE_DEATH, TWO_DEATHS, assert_explored, explore


@click.command(help=__doc__)
def main() -> None:
    for definitions in (ONE_DEATH, TWO_DEATHS):
        with tempfile.TemporaryDirectory() as directory:
            assert_explored(explore(Path(directory), *definitions))
        click.echo(f"{' '.join(definitions)}: no errors")


if __name__ == "__main__":
    main()
