"""Spin explores the model of the ordered log, and finds each mistake that is made in it."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.model.exploration import (
    LARGE_MUTANTS,
    MUTANTS,
    SIZES,
    SMALL,
    assert_explored,
    assert_found,
    build,
    explore,
)
from tests.support.needs import needs_tool

pytestmark = [needs_tool("spin", "spin"), needs_tool("gcc", "gcc")]

PanOfSize = Callable[[tuple[str, ...]], Path]


@pytest.fixture(scope="module")
def pan_of_size(tmp_path_factory: pytest.TempPathFactory) -> PanOfSize:
    """Makes the program of a size once, because gcc takes longer than most explorations."""
    return cache(lambda size: build(tmp_path_factory.mktemp("pan"), size))


@pytest.fixture(scope="module")
def pan_for_endless_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("pan"), SMALL, for_endless_runs=True)


def test_every_promise_holds_in_every_state(pan_of_size: PanOfSize) -> None:
    assert_explored(explore(pan_of_size(SMALL)))


@pytest.mark.parametrize("mutant", sorted(MUTANTS.keys() - LARGE_MUTANTS))
def test_a_mutant_violates_a_promise(pan_of_size: PanOfSize, mutant: str) -> None:
    assert_found(mutant, explore(pan_of_size(SIZES.get(mutant, SMALL)), mutant))


def test_everybody_sleeps_in_the_end(pan_for_endless_runs: Path) -> None:
    assert_explored(explore(pan_for_endless_runs, for_endless_runs=True))


def test_a_mutant_that_waits_busily_runs_for_ever(pan_for_endless_runs: Path) -> None:
    output = explore(pan_for_endless_runs, "BUSY_WAIT", for_endless_runs=True)
    assert "non-progress cycle" in output
    assert "errors: 1" in output
