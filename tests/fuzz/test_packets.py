"""Random and damaged packets cause the documented errors and nothing else.

A fixed portion of what `python -m tests.fuzz.packets` runs, in both dialects.
"""

import pytest

from tests.fuzz.generator import PacketMaker
from tests.fuzz.packets import CAMPAIGN_PACKETS, LIMITS, maker_of, through_parser, through_sessions
from tests.history.verdicts import documented_codes

SEEDS = range(4)
NOT_HERE = {
    *("table-full", "too-slow", "too-many-secret", "too-many-blocking"),
    *("not-allowed", "too-many-connections", "too-many-users", "kicked", "too-many-steps"),
    *("has-descriptors", "kills-workers"),
}
"""Codes for a full table, for who does not read, for a worker without descriptors or places; of
access rules, which there are none, of an acceptor, which there is none, of administrators, of more
patterns than the clients of these packets can have, of attached descriptors, and of workers that
die."""
_NAMED = {"bad-will", "has-name", "name-taken"}
SLASH_ONLY = {"bad-secret-pattern", "not-yours", "bad-token", "bad-name", *_NAMED}
"""Codes that the dot dialect, which has no secret messages, receipts and names, cannot bring
about."""
STATEFUL = {*NOT_HERE, *_NAMED, "bad-token", "not-yours", "too-many-patterns", "packet-too-long"}
"""Codes that the parser alone cannot find."""


@pytest.mark.parametrize("seed", SEEDS)
def test_the_parser_and_the_index_survive_anything(seed: int) -> None:
    counts = through_parser(seed, CAMPAIGN_PACKETS)
    assert counts.total() == 2 * CAMPAIGN_PACKETS
    assert counts.keys() - {"accepted"} == documented_codes().keys() - STATEFUL


@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_and_workers_survive_anything(seed: int) -> None:
    counts = through_sessions(seed, CAMPAIGN_PACKETS)
    due = documented_codes().keys() - NOT_HERE
    if maker_of(seed)[0] == "dot":
        due -= SLASH_ONLY
    assert due <= counts.keys(), "the packets were too tame"


def test_a_seed_stands_for_its_packets() -> None:
    makers = [maker_of(7)[1], maker_of(7)[1], PacketMaker(8, b".", LIMITS)]
    rows = [[maker.packet() for _ in range(1_000)] for maker in makers]
    assert rows[0] == rows[1] != rows[2]
