"""Explores the model in the sizes that take longer: `python -m tests.model`."""

import tempfile
from pathlib import Path

import click

from tests.model.exploration import (
    LARGE_MUTANTS,
    ONE_DEATH,
    SIZES,
    TWO_DEATHS,
    assert_explored,
    assert_found,
    build,
    explore,
)


@click.command(help=__doc__)
def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for size in (ONE_DEATH, TWO_DEATHS):
            pan = build(Path(directory), size, optimization="-O1")
            assert_explored(explore(pan))
            click.echo(f"{' '.join(size)}: no errors")
            for mutant in LARGE_MUTANTS:
                if SIZES[mutant] == size:
                    assert_found(mutant, explore(pan, mutant))
                    click.echo(f"{' '.join(size)}: {mutant} is found")


if __name__ == "__main__":
    main()
