"""Spin explores the model of the ordered log, and finds each mistake that is made in it."""

from pathlib import Path

import pytest

from tests.model.exploration import (
    LARGE_MUTANTS,
    MUTANTS,
    SIZES,
    SMALL,
    assert_explored,
    assert_found,
    explore,
)
from tests.support.needs import needs_tool

pytestmark = [needs_tool("spin", "spin"), needs_tool("gcc", "gcc")]


def test_every_promise_holds_in_every_state(tmp_path: Path) -> None:
    assert_explored(explore(tmp_path, *SMALL))


def test_everybody_sleeps_in_the_end(tmp_path: Path) -> None:
    assert_explored(explore(tmp_path, *SMALL, for_endless_runs=True))


@pytest.mark.parametrize("mutant", sorted(MUTANTS.keys() - LARGE_MUTANTS.keys()))
def test_a_mutant_violates_a_promise(tmp_path: Path, mutant: str) -> None:
    assert_found(mutant, explore(tmp_path, *SIZES.get(mutant, SMALL), f"MUTANT={mutant}"))


def test_a_mutant_that_waits_busily_runs_for_ever(tmp_path: Path) -> None:
    output = explore(tmp_path, *SMALL, "MUTANT=BUSY_WAIT", for_endless_runs=True)
    assert "non-progress cycle" in output
    assert "errors: 1" in output
