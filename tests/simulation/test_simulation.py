"""Some seeds of the simulation, which are the same each time; all others by its command line."""

import re
import subprocess
import sys

import pytest

SEEDS = 60


def simulate(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *options]
    return subprocess.run(command, check=False, timeout=600, capture_output=True, text=True)


@pytest.fixture(scope="module")
def portion() -> str:
    """What all of these seeds came to."""
    run = simulate("--seeds", str(SEEDS), "--digests")
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_promises_hold_whatever_fails_when(portion: str) -> None:
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (\w+)", portion)}
    assert min(counts[what] for what in ("deaths", "moves", "announced")) > SEEDS / 3
    assert counts["lost"] > SEEDS


def test_a_death_at_an_instruction_of_any_critical_section_breaks_no_promise() -> None:
    run = simulate("--every-death", "8999", "--first", "3")
    assert run.returncode == 0, run.stdout + run.stderr
    holds = dict(line.split()[::-1] for line in run.stdout.splitlines()[:-1])
    assert {"Sequencer._place", "Sequencer.journal_step", "Sequencer.hand_over"} <= holds.keys()
    assert {"Backpressure.stall", "UnfinishedWork.begin", "_Journal.__init__"} <= holds.keys()
    assert "Sequencer._place(receipt)" in holds
    assert {"PresenceSteps._place", "PresenceSteps._barrier"} <= holds.keys()


def test_a_seed_replays_exactly(portion: str) -> None:
    """With both steps, and after other seeds as without them."""
    again = simulate("--first", "11", "--seeds", "16", "--digests").stdout
    digests = re.findall(r"^seed (?:1[1-9]|2[0-6]): .*", portion, re.MULTILINE)
    assert len(set(digests)) == 16
    assert re.findall("^seed .*", again, re.MULTILINE) == digests


@pytest.mark.parametrize(
    ("mutant", "seed"),
    [
        ("early-flip", 67),
        ("early-serving", 158),
        ("keep-nothing", 405),
        ("own-mark", 420),
        ("stale-progress", 240),
    ],
)
def test_a_mistake_that_is_made_on_purpose_is_found(mutant: str, seed: int) -> None:
    """The command that finds it is named; without the mistake it finds nothing."""
    options = ("--first", str(seed), "--seeds", "1", "--step", "python")
    run = simulate(*options, "--mutant", mutant)
    assert run.returncode == 1, run.stdout
    again = " ".join(("python -m tests.simulation", *options, "--mutant", mutant))
    assert f"seed {seed} failed: {again}\n" in run.stdout
    assert simulate(*options).returncode == 0
