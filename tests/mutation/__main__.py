"""Would the tests notice a fault? Each command makes faults on purpose, and runs tests.

They work in a copy of a checkout, and need root, for a PID namespace. A command that is started
again with the same state file goes on with what is left; results of other trees stay in it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tests.campaign.__main__ import Duration
from tests.mutation import compiled, planted, sample
from tests.mutation.bugs import deaths, libraries, messages, upgrades
from tests.mutation.reach import Reach
from tests.mutation.state import State, deadline
from tests.support.bus import PROJECT

BUGS = (*deaths.BUGS, *upgrades.BUGS, *messages.BUGS, *libraries.BUGS)
Command = Callable[..., Any]


def _with_options(command: Command) -> Command:
    path = click.Path(path_type=Path)
    options = (
        click.option("--state", type=path, required=True, help="What has been done, in JSON."),
        click.option("--tree", type=path, default=PROJECT, help="Another checkout."),
        click.option("--for", "seconds", type=Duration(), help="Begin nothing after: 30m, 2h."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("sample")
@_with_options
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--count", type=int, default=2000, show_default=True)
@click.option(
    "--only", default="", metavar="PACKAGE", help="Mutants of this package, as sbus.broker."
)
@click.option("--survivors", is_flag=True, help="List what no test noticed, and run nothing.")
def sample_command(
    state: Path,
    tree: Path,
    seconds: float | None,
    seed: int,
    count: int,
    only: str,
    survivors: bool,
) -> None:
    """A sample of all mutants of sbus/, with the ordinary step in Python. First records which tests
    reach which function, beside the state file, which takes about half an hour."""
    tree, done, is_over = tree.resolve(), State(state, tree.resolve()), deadline(seconds)
    chosen = sample.choose(tree, seed, count, only)
    if survivors:
        click.echo("\n".join(sample.survivors(done, chosen)))
        return
    reach = Reach(state.with_suffix(".reach.json"), tree, done.tree)
    reach.complete(is_over, click.echo)
    sample.run_sample(tree, chosen, done, reach, is_over, click.echo)
    click.echo("\n".join(sample.summary(done, chosen)))


@main.command("planted")
@_with_options
@click.option("--only", default="", metavar="TEXT", help="Those with this in their name.")
def planted_command(state: Path, tree: Path, seconds: float | None, only: str) -> None:
    """Faults that the bus once had, each with the tests that are to find it."""
    tree, done = tree.resolve(), State(state, tree.resolve())
    bugs = [bug for bug in BUGS if only in bug.name]
    planted.run_planted(tree, bugs, done, deadline(seconds), click.echo)
    click.echo("\n".join(planted.summary(done, bugs)))


@main.command("compiled")
@_with_options
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--count", type=int, default=100, show_default=True)
def compiled_command(state: Path, tree: Path, seconds: float | None, seed: int, count: int) -> None:
    """Changes of one token in the C sources of the ordinary step."""
    tree, done = tree.resolve(), State(state, tree.resolve())
    compiled.run_compiled(tree, seed, count, done, deadline(seconds), click.echo)
    click.echo("\n".join(compiled.summary(done, compiled.choose(tree, seed))))


if __name__ == "__main__":
    main()
