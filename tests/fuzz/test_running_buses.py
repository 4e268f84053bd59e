"""Packets of all kinds by ten users against running buses: nothing unexpected comes of them.

A portion of what `python -m tests.fuzz.run_packets` runs.
"""

import pytest

from tests.fuzz.live_campaign import run_campaign
from tests.fuzz.live_setting import USERS, setting_of
from tests.support.users import needs_root

PACKETS = 6_000
SEEDS = (1, 5, 14, 42)


def test_the_seeds_differ_in_everything() -> None:
    for values in zip(*map(setting_of, SEEDS), strict=True):
        assert len(set(values)) > 1
    assert len({setting_of(seed) for seed in range(48)}) == 48


@needs_root
@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_reaches_just_its_recipients(seed: int) -> None:
    tally = run_campaign(seed, PACKETS)
    assert tally["packets"] == PACKETS
    assert tally["disconnected"] > 10
    assert tally["decisions"] > len(USERS) * tally["published"]
    assert 0 < tally["uncertain"] < tally["decisions"] / 10
    if setting_of(seed).dialect == "slash":
        assert tally["secret"] > 10
        assert tally["receipts"] > 100
        assert tally["joins and leaves"] > 20
        assert tally["lists of members"] > 20
