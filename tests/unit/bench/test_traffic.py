"""Patterns of a crowd, which must not match, and windows, which must not fill a backlog."""

import fnmatch

import pytest

from sbus.bench.traffic import CROWDS, Bystanders, Traffic
from sbus.limits import Limits


@pytest.mark.parametrize("size_bytes", [35, 110, 4_096, 409_600])
def test_the_window_never_fills_a_backlog(size_bytes: int) -> None:
    window = Traffic(messages=1, size_bytes=size_bytes).window_messages
    limits = Limits()
    assert 32 <= window < limits.backlog_messages_max
    assert window * size_bytes < limits.backlog_bytes_max


@pytest.mark.parametrize("name", CROWDS)
def test_no_pattern_of_a_crowd_matches_the_traffic(name: str) -> None:
    crowd = CROWDS[name]
    keys = [f"bench/{number:012}/m" for number in (0, 1, 15, 999_999, 10**11)]
    patterns = {p.decode() for client in range(crowd.clients) for p in crowd.patterns(client)}
    assert len(patterns) == crowd.clients * crowd.patterns_per_client
    assert fnmatch.fnmatchcase(keys[0], "bench/*/m")
    # A shell's `*` also crosses separators, so it matches all that the bus's does, and more.
    assert not [p for p in patterns for key in keys if fnmatch.fnmatchcase(key, p)]


def test_wildcards_are_prefixes_and_whole_segments() -> None:
    crowd = Bystanders(clients=2, patterns_per_client=2, wildcards=True)
    assert crowd.patterns(0) == [b"bench/n00000*", b"bench/*/n00001"]
    assert crowd.patterns(1) == [b"bench/n00002*", b"bench/*/n00003"]
