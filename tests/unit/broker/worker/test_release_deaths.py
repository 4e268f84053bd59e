"""A worker dies between any two changes of the shared memory by the machine code of a release.

Tests with hooks run other code: a call before each store keeps the compiler from moving any.
"""

import os
import subprocess
import sys

import msgspec
import pytest

from deploy.compile_step import compile_step
from tests.support.needs import needs_compiled_step

pytestmark = needs_compiled_step

MESSAGES = ["MSG a\0first", "MSG b\0second", "MSG a\0third"]
READERS = 3


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """As `SteppedOutcome`."""

    received: list[list[str]]
    lost: list[int]
    has_place: bool

    def doubtful(self) -> int:
        """How many deliveries are admitted as lost that were made; fails where one is missing."""
        accounted = [len(got) + lost for got, lost in zip(self.received, self.lost, strict=True)]
        assert min(accounted) >= len(MESSAGES), self
        for got in self.received:
            numbers = [MESSAGES.index(packet) for packet in got]
            assert numbers == sorted(set(numbers)), self
        return sum(accounted) - READERS * len(MESSAGES)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """Of a death after each change, by the kind of publishing; the last are without a death."""
    module = tmp_path_factory.mktemp("release") / "_step.abi3.so"
    compile_step(module)
    command = [sys.executable, "-m", "tests.unit.broker.worker.stepped_deaths"]
    environment = {**os.environ, "SBUS_TEST_STEP": str(module)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return msgspec.json.decode(run.stdout, type=dict[str, list[Outcome]])


def test_losses_of_a_batch_are_those_that_there_were(outcomes: dict[str, list[Outcome]]) -> None:
    """Until the batch has its place, its messages are published by the successor, or not at all."""
    found = outcomes["publish_here"]
    for outcome in found:
        if outcome.has_place:
            assert outcome.doubtful() in (0, 1), outcome
        else:
            assert outcome.lost == [0] * READERS, outcome
    assert found[-1] == Outcome([MESSAGES] * READERS, [0] * READERS, True)
    assert any(sum(outcome.lost) == READERS * len(MESSAGES) for outcome in found)
    assert len(found) > READERS * len(MESSAGES)


def test_log_blocks_reach_everybody_who_has_not_got_them(
    outcomes: dict[str, list[Outcome]],
) -> None:
    found = outcomes["publish_elsewhere"]
    for outcome in found:
        assert outcome.doubtful() in (0, 1), outcome
        assert sum(outcome.lost) <= 1, outcome
    assert found[-1] == Outcome([MESSAGES] * READERS, [0] * READERS, True)
    assert len(found) > READERS * len(MESSAGES)
