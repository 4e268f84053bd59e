"""Spin explores the model of the ordered log, and finds each mistake that is made in it."""

import re
from pathlib import Path

import pytest

from tests.model.exploration import ONE_DEATH, SMALL, TWO_DEATHS, assert_explored, explore
from tests.support.needs import needs_tool

pytestmark = [needs_tool("spin", "spin"), needs_tool("gcc", "gcc")]

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
    "NO_MARGIN": TWO_DEATHS,
}
"""Of those that are not found in the small one."""


def test_every_promise_holds_in_every_state(tmp_path: Path) -> None:
    assert_explored(explore(tmp_path, *SMALL))


def test_everybody_sleeps_in_the_end(tmp_path: Path) -> None:
    assert_explored(explore(tmp_path, *SMALL, for_endless_runs=True))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_violates_a_promise(tmp_path: Path, mutant: str) -> None:
    output = explore(tmp_path, *SIZES.get(mutant, SMALL), f"MUTANT={mutant}")
    violated = re.search(r"assertion violated (.*) \(at depth", output)
    assert violated is not None, output
    assert MUTANTS[mutant] in violated[1]


def test_a_mutant_that_waits_busily_runs_for_ever(tmp_path: Path) -> None:
    output = explore(tmp_path, *SMALL, "MUTANT=BUSY_WAIT", for_endless_runs=True)
    assert "non-progress cycle" in output
    assert "errors: 1" in output
