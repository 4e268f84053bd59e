"""Spin explores the model of the ordered log: `python -m tests.model` does so in every size.

`pan` is the program that Spin makes of a model. It stops at the first error; `pan -l` looks for
runs without an end instead of violated assertions.
"""

import os
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

MODEL = Path(__file__).with_name("ordered_log.pml")

ONE_DEATH = ("MESSAGES=3", "DEATHS=1", "LOG_BLOCKS=2")
TWO_DEATHS = ("MESSAGES=2", "DEATHS=2", "LOG_BLOCKS=1")
SMALL = ("MESSAGES=2", "DEATHS=1", "LOG_BLOCKS=1")
"""In all of them there may be no room in the log for the last message."""

MUTANTS = {
    "EARLY_FLIP": "end_due[i]",
    "LATE_ASK": "due[i]",
    "DELIVER_FIRST": "own_place)-1",
    "SILENT_REAP": "unplaced[i]",
    "NO_ROOM": "own_place)-1",
    "LATE_NOTE": "due[me]",
    "NO_BATCH": "due[me]",
    "HIGH_WATER": "low<=low",
    "NO_MARGIN": "due[me]",
    "STALE_NOTE": "in_doubt[me]",
}
"""With a part of the assertion that is violated."""
MORE_ROOM = ("MESSAGES=2", "DEATHS=1", "LOG_BLOCKS=3")
SIZES = {"EARLY_FLIP": MORE_ROOM, "HIGH_WATER": MORE_ROOM, "NO_MARGIN": TWO_DEATHS}
"""Of those that are not found in the small one."""
LARGE_MUTANTS = {"NO_MARGIN"}
"""Those that are found in a size that takes longer."""


@cache
def _number(mutant: str) -> str:
    found = re.search(rf"#define {mutant} (\d+)", MODEL.read_text())
    assert found is not None, mutant
    return found[1]


def build(
    directory: Path,
    size: Iterable[str],
    *,
    for_endless_runs: bool = False,
    optimization: str = "-O0",
) -> Path:
    """Make `pan` for the model in this size. To optimize it takes gcc longer than it saves, except
    in large sizes."""
    mode = "-DNP" if for_endless_runs else "-DSAFETY"
    defined = [f"-D{definition}" for definition in size]
    for command in (
        ["spin", *defined, "-a", str(MODEL)],
        ["gcc", optimization, "-w", mode, "-DMEMLIM=2048", "-o", "pan", "pan.c"],
    ):
        subprocess.run(command, cwd=directory, check=True, timeout=300)
    return directory / "pan"


def explore(pan: Path, mutant: str = "", *, for_endless_runs: bool = False) -> str:
    """What `pan` says when it has explored the model, with this mistake, or found an error."""
    environment = {**os.environ, "MUTANT": _number(mutant)} if mutant else None
    return subprocess.run(
        [pan, "-l" if for_endless_runs else "-E", "-m10000"],
        cwd=pan.parent,
        env=environment,
        check=True,
        timeout=600,
        capture_output=True,
        text=True,
    ).stdout


def assert_explored(output: str) -> None:
    """Every state was visited, and no error found."""
    assert "errors: 0" in output, output
    assert "Search not completed" not in output, output
    assert "max search depth" not in output, output


def assert_found(mutant: str, output: str) -> None:
    """Spin found that this mistake breaks the promise that it should break."""
    violated = re.search(r"assertion violated (.*) \(at depth", output)
    assert violated is not None, output
    assert MUTANTS[mutant] in violated[1]
