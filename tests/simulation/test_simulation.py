"""Some seeds of the simulation, which are the same each time; all others by its command line."""

import re
import subprocess
import sys

import pytest

from sbus.compiled import STEP

SEEDS = 100


def simulate(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *options]
    return subprocess.run(command, check=False, timeout=600, capture_output=True, text=True)


def test_promises_hold_whatever_fails_when() -> None:
    run = simulate("--seeds", str(SEEDS))
    assert run.returncode == 0, run.stdout + run.stderr
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (\w+)", run.stdout)}
    assert min(counts[what] for what in ("deaths", "moves", "announced")) > SEEDS / 3
    assert counts["lost"] > SEEDS


def test_a_death_at_an_instruction_of_any_critical_section_breaks_no_promise() -> None:
    run = simulate("--every-death", "2999", "--first", "3")
    assert run.returncode == 0, run.stdout + run.stderr
    holds = dict(line.split()[::-1] for line in run.stdout.splitlines()[:-1])
    assert {"Sequencer._place", "Sequencer.journal_step", "Sequencer.hand_over"} <= holds.keys()
    assert {"Backpressure.stall", "UnfinishedWork.begin", "_Journal.__init__"} <= holds.keys()
    assert "Sequencer._place(receipt)" in holds
    assert {"PresenceSteps._place", "PresenceSteps._barrier"} <= holds.keys()


@pytest.mark.parametrize("step", ["python", STEP])
def test_a_seed_replays_exactly(step: str) -> None:
    options = ("--first", "11", "--seeds", "8", "--step", step, "--digests")
    runs = [simulate(*options).stdout.splitlines()[:-1] for _ in range(2)]
    assert len(runs[0]) == 9
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("mutant", "first", "step"),
    [
        ("early-flip", 43, "python"),
        ("early-serving", 150, "both"),
        ("keep-nothing", 405, "python"),
        ("own-mark", 415, "python"),
        ("stale-progress", 240, "python"),
    ],
)
def test_a_mistake_that_is_made_on_purpose_is_found(mutant: str, first: int, step: str) -> None:
    """The seed that finds it is named, and finds it again; without the mistake it finds nothing."""
    options = ("--first", str(first), "--seeds", "50", "--step", step, "--mutant", mutant)
    run = simulate(*options)
    assert run.returncode == 1, run.stdout
    found = re.search(rf"failed: python -m tests.simulation (.*) --mutant {mutant}", run.stdout)
    assert found is not None, run.stdout
    again = found[1].split()
    assert simulate(*again, "--mutant", mutant).returncode == 1
    assert simulate(*again).returncode == 0
