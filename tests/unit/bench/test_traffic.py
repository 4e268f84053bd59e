"""Patterns of a crowd, which must not match what is measured."""

import fnmatch

import pytest

from sbus.bench.traffic import Bystanders


@pytest.mark.parametrize("wildcards", [False, True])
def test_no_pattern_of_a_crowd_matches_the_traffic(wildcards: bool) -> None:
    crowd = Bystanders(clients=20, patterns_per_client=100, wildcards=wildcards)
    patterns = {p.decode() for client in range(crowd.clients) for p in crowd.patterns(client)}
    assert len(patterns) == crowd.clients * crowd.patterns_per_client
    assert fnmatch.fnmatchcase("bench/peers", "bench/*")
    # A shell's `*` also crosses separators, so it matches all that the bus's does, and more.
    assert not [pattern for pattern in patterns if fnmatch.fnmatchcase("bench/peers", pattern)]


def test_wildcards_are_prefixes_and_whole_segments() -> None:
    crowd = Bystanders(clients=2, patterns_per_client=2, wildcards=True)
    assert crowd.patterns(0) == [b"bench/n00000*", b"bench/*/n00001"]
    assert crowd.patterns(1) == [b"bench/n00002*", b"bench/*/n00003"]
