"""Spin explores the model of the ordered log: `python -m tests.model` does so in every size.

`pan` is the program that Spin makes of a model. It stops at the first error; `pan -l` looks for
runs without an end instead of violated assertions.
"""

import re
import subprocess
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
    "NO_ROOM": "ring[",
    "LATE_NOTE": "due[me]",
    "NO_BATCH": "due[me]",
    "HIGH_WATER": "low<=low",
    "NO_MARGIN": "due[me]",
    "STALE_NOTE": "in_doubt[me]",
}
"""With a part of the assertion that is violated."""
SIZES = {
    "EARLY_FLIP": ONE_DEATH,
    "NO_ROOM": ONE_DEATH,
    "HIGH_WATER": ("MESSAGES=2", "DEATHS=1", "LOG_BLOCKS=3"),
}
"""Of those that are not found in the small one."""
LARGE_MUTANTS = {"NO_MARGIN": TWO_DEATHS}
"""Those that are found in a size that takes longer."""


def explore(directory: Path, *definitions: str, for_endless_runs: bool = False) -> str:
    """What `pan` says when it has explored the model with these definitions, or found an error."""
    mode, option = ("-DNP", "-l") if for_endless_runs else ("-DSAFETY", "-E")
    is_mutant = any(definition.startswith("MUTANT") for definition in definitions)
    optimization = "-O0" if is_mutant else "-O1"  # more takes gcc longer than it saves
    defined = [f"-D{definition}" for definition in definitions]
    for command in (
        ["spin", *defined, "-a", str(MODEL)],
        ["gcc", optimization, "-w", mode, "-DMEMLIM=2048", "-o", "pan", "pan.c"],
    ):
        subprocess.run(command, cwd=directory, check=True, timeout=300)
    pan = ["./pan", option, "-m10000"]
    return subprocess.run(
        pan, cwd=directory, check=True, timeout=600, capture_output=True, text=True
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
