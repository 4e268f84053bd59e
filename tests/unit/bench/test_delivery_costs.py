"""Costs from samples, what is compared with what, and patterns that must not match."""

import fnmatch
from pathlib import Path

import pytest

from sbus.bench.delivery_costs import CROWDS, cost_result, ratios
from sbus.bench.servers import RunSettings
from sbus.bench.traffic import Bystanders, Case, Sample, Traffic
from sbus.limits import Limits


def sample(*cpu_us: int, deliveries: int = 1_000, wall_us: int = 10_000) -> Sample:
    return Sample(deliveries, wall_us * 1_000, 0, tuple(us * 1_000 for us in cpu_us))


def case(reference: str = "") -> Case:
    start = RunSettings(directory=Path("/nowhere")).broker(1)
    return Case(start, Traffic(messages=1, size_bytes=110), reference)


def test_a_cost_is_the_cpu_of_all_processes_per_delivery() -> None:
    one = sample(1_000, 5_000, deliveries=2_000)
    assert one.cpu_us_per_delivery == pytest.approx(3.0)
    assert one.deliveries_per_second == pytest.approx(200_000)
    assert one.busy_percent == pytest.approx(60.0)


def test_ratios_pair_what_was_measured_together() -> None:
    samples = {"broker": [sample(4_000), sample(6_000)], "relay": [sample(2_000), sample(4_000)]}
    assert ratios("broker", "relay", samples) == pytest.approx([2.0, 1.5])


def test_a_row_compares_a_case_with_its_reference() -> None:
    samples = {"base": [sample(4_000)] * 3, "more": [sample(5_000), sample(4_000), sample(6_000)]}
    cases = {"base": case(), "more": case("base")}
    as_ratio = cost_result("x", {}, cases, samples)
    assert as_ratio.rows[0] == ("base", "4.00", "4.00", "4.00", "100,000", "40", "")
    assert as_ratio.rows[1] == ("more", "5.00", "4.00", "6.00", "100,000", "50", "1.25 x")
    in_percent = cost_result("x", {}, cases, samples, percent=True)
    assert in_percent.rows[1][-1] == "+25.0 %"


def test_every_row_fits_a_terminal() -> None:
    samples = {"10k wildcard, new keys": [sample(999_000, wall_us=1_000)], "base": [sample(1)]}
    cases = {"10k wildcard, new keys": case("base"), "base": case()}
    text = cost_result("x", {}, cases, samples).as_text()
    assert max(map(len, text.splitlines())) <= 80


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
