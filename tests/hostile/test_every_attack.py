"""Attacks of one user: another user loses nothing, only attackers are refused or disconnected, and
the bus goes on.

No operation of a process of the bus may take far more CPU time than its bound: every bus of a test
is watched for that. How long the other user's messages take is measured by
`python -m sbus.bench attacks`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus.bench.attacks.programs import ATTACKS
from tests.support.attacks import attacked_bus
from tests.support.processes import serving_pids
from tests.support.users import directory_for_everybody, needs_root

pytestmark = needs_root

ATTACK_SECONDS = 0.2
ROUNDS_MAX = 50
ANSWERS = {
    "connect-refused": "too_many_connections",
    "connect-garbage": "unknown_word",
    "descriptors": "descriptors_refused",
    "disconnect-descriptors": "disconnected",
    "patterns": "too_many_steps",
    "cache-flush": "too_many_steps",
}
"""How the bus answers attacks that it does not put up with."""
HELD_BACK = {"connect", "connect-use", "wills"}
"""Attackers that connect too fast have to wait; those that do not wait are refused in the end."""
ENDINGS = ("disconnected", "ConnectionResetError", "BrokenPipeError", "BlockingIOError")


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with directory_for_everybody() as made:
        yield made


@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_another_user_loses_nothing(directory: Path, attack: str) -> None:
    """An attack does not wait for the bus's answer, so that may need some rounds."""
    answer = ANSWERS.get(attack, "steps")
    with attacked_bus(attack, directory) as (bus, scene):
        processes = serving_pids(bus)
        for _ in range(ROUNDS_MAX):
            outcome = scene.attack(ATTACK_SECONDS)
            assert outcome.count("steps") > 0
            assert outcome.lost == 0
            assert outcome.messages["messages"] > 0
            assert outcome.connections["connections"] > 0
            if outcome.count(answer):
                break
        else:
            pytest.fail(f"{answer} does not come")
        assert serving_pids(bus) == processes, "a process of the bus was replaced"
        if attack not in ANSWERS and attack not in HELD_BACK:
            assert sum(map(outcome.count, ENDINGS)) == 0
