"""Explores the model in the sizes that take longer: `python -m tests.model`."""

import tempfile
from pathlib import Path

import click

from tests.model.exploration import (
    LARGE_MUTANTS,
    ONE_DEATH,
    TWO_DEATHS,
    assert_explored,
    assert_found,
    explore,
)


@click.command(help=__doc__)
def main() -> None:
    for definitions in (ONE_DEATH, TWO_DEATHS):
        with tempfile.TemporaryDirectory() as directory:
            assert_explored(explore(Path(directory), *definitions))
        click.echo(f"{' '.join(definitions)}: no errors")
    for mutant, definitions in LARGE_MUTANTS.items():
        with tempfile.TemporaryDirectory() as directory:
            assert_found(mutant, explore(Path(directory), *definitions, f"MUTANT={mutant}"))
        click.echo(f"{' '.join(definitions)}: {mutant} is found")


if __name__ == "__main__":
    main()
