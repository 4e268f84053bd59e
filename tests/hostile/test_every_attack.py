"""Attacks of one user: another user's messages all arrive in order, all of its connections are
admitted, and the bus goes on.

How long these take is measured by `python -m sbus.bench attacks`.
"""

import pytest

from sbus.bench.attacks.programs import ATTACKS
from tests.support.attacks import attacked_bus
from tests.support.users import needs_root

pytestmark = needs_root


@pytest.mark.parametrize("attack", sorted(ATTACKS.keys() - {"descriptors"}))
def test_another_user_loses_nothing(attack: str) -> None:
    with attacked_bus(attack) as (bus, scene):
        before = bus.pids()
        outcome = scene.attack(0.5)
        assert outcome.count("steps") > 0
        assert outcome.lost == 0
        assert outcome.messages["messages"] > 0
        assert outcome.connections["connections"] > 0
        assert bus.pids() == before, "a process of the bus was replaced"
