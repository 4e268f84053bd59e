"""Watchers of different workers agree about everybody, whatever happens to the members' workers; a
short part of `python -m tests.broker.presence_campaign`."""

from pathlib import Path

from tests.broker.presence_campaign import run_campaign


def test_all_watchers_receive_the_same(tmp_path: Path) -> None:
    counts = run_campaign(tmp_path, seconds=1.0, clients=40, seed=1)
    assert counts["upgrades"] == 2
    assert counts["presence"] > 10
