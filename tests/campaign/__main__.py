"""Campaigns with random events: `python -m tests.campaign --only buses --for 2h --state FILE`.

Each seed is a run of a bus of its own: its workers, dialect and steps, its clients, and what
happens to it. What they receive is checked against docs/protocol.md. A campaign that is started
again with the same file goes on with the seeds that are left. Time and failures of earlier calls
count, as long as the tree is the same.
"""

import re
import sys
import tempfile
from pathlib import Path

import click

from tests.campaign.figures import summary
from tests.campaign.scheduler import State, run_seeds, tree_id
from tests.support.bus import PROJECT

_UNITS = {"s": 1, "m": 60, "h": 3600}


class Duration(click.ParamType[float]):
    """A number with a unit."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = re.fullmatch(r"([\d.]+)([smh])", str(value))
        if found is None:
            self.fail(f"{value!r} is no time such as 30s, 10m or 2h", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.command(help=__doc__)
@click.option("--only", type=click.Choice(["buses"]), default="buses", help="This campaign alone.")
@click.option(
    "--for", "seconds", type=Duration(), help="Begin runs until they took so long: 30s, 10m, 2h."
)
@click.option("--runs", type=int, help="At most so many runs.")
@click.option("--seed", type=int, default=1, show_default=True, help="The first one.")
@click.option("--state", type=click.Path(path_type=Path), help="What has been done, in JSON.")
@click.option(
    "--tree",
    "trees",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Run the bus of this checkout; with several, each upgrade goes to the next one.",
)
@click.option("--logs", type=click.Path(path_type=Path), help="Where logs of failures are kept.")
def main(
    only: str,
    seconds: float | None,
    runs: int | None,
    seed: int,
    state: Path | None,
    trees: tuple[Path, ...],
    logs: Path | None,
) -> None:
    if seconds is None and runs is None:
        raise click.UsageError("say --for how long, or how many --runs")
    trees = tuple(tree.resolve() for tree in trees or (PROJECT,))
    kept = logs or Path(tempfile.mkdtemp(prefix="sbus-campaign-logs-"))
    name = ", ".join(map(tree_id, trees))
    done = State(state, name)

    def is_over(count: int) -> bool:
        is_long = seconds is not None and done.own["seconds"] >= seconds
        return is_long or (runs is not None and count >= runs)

    run_seeds(done, seed, is_over, kept, trees, click.echo)
    click.echo("\n".join(summary(name, done.own)))
    sys.exit(bool(done.own["failures"]))


if __name__ == "__main__":
    main()
