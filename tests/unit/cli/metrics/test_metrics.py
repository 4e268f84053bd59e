"""Metrics of made-up results, read with the client library's own parser."""

import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from prometheus_client import parser as text_parser
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser

from sbus.cli.metrics.collector import BusCollector, openmetrics_text
from sbus.cli.metrics.families import FAMILIES
from sbus.cli.metrics.textfile import replace_file, write_textfile
from sbus.cli.sbusctl.metrics_verb import metrics
from sbus.errors import AddressError, ConfigurationError
from sbus.limits import Limits
from sbus.protocol.admin_results import UsersResult
from tests.support import admin_samples as sample
from tests.support.fake_admin import FakeAdmin

STATS = sample.stats(
    draining=True,
    users=5,
    connections_refused={"not-admitted": 3},
    table=None,
    workers=[sample.worker(0, clients=7), sample.worker(1, state="silent", deaths=2)],
)
VERSION = sample.version(address='/run/x"y')
UIDS = [0, 3_000_000_001, 3_000_000_002, 3_000_000_003]
"""Root, and users without names."""


def users(request: dict[str, Any]) -> UsersResult:
    """A page of at most two."""
    rest = [uid for uid in UIDS if uid > request["after"]]
    page = rest[: min(request["limit"], 2)]
    return UsersResult(
        users=[
            sample.user(uid=uid, connections=uid % 100, limits=Limits(user_connections_max=77).user)
            for uid in page
        ],
        next=page[-1] if len(rest) > len(page) else None,
    )


@pytest.fixture
def fake_bus(tmp_path: Path) -> Iterator[FakeAdmin]:
    with FakeAdmin(tmp_path, {"version": VERSION, "stats": STATS, "users": users}) as admin:
        yield admin


def families_of(exposition: bytes) -> list[Metric]:
    parse = openmetrics_parser.text_string_to_metric_families
    return list(parse(exposition.decode()))  # type: ignore[no-untyped-call]


def samples(exposition: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in families_of(exposition):
        for one in family.samples:
            place = (one.name, frozenset(one.labels.items()))
            assert place not in found
            found[place] = one.value
    return found


def at(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_metrics_of_the_bus(fake_bus: FakeAdmin) -> None:
    found = samples(openmetrics_text(BusCollector(fake_bus.bus_address, users_max=10)))
    assert found[at("sbus_up")] == 1
    assert found[at("sbus_start_time_seconds")] == 1_700_000_000
    assert found[at("sbus_draining")] == 1
    assert found[at("sbus_clients")] == 1_000
    assert found[at("sbus_stored_clients")] == 980
    assert found[at("sbus_users")] == 5
    assert found[at("sbus_stalled_clients")] == 3
    assert found[at("sbus_connections_accepted_total")] == 23_456
    assert found[at("sbus_connections_refused_total", code="not-admitted")] == 3
    assert found[at("sbus_connections_refused_total", code="too-many-users")] == 0
    assert found[at("sbus_log_used_bytes")] == 3_355_443
    assert found[at("sbus_log_size_bytes")] == 8_388_608
    assert at("sbus_table_used_bytes") not in found, "the table was in use"
    assert found[at("sbus_discarded_total", reason="soft")] == 12
    assert found[at("sbus_discarded_total", reason="hard")] == 700
    assert found[at("sbus_discarded_total", reason="fan-out")] == 0
    assert found[at("sbus_refused_total", code="reserved")] == 17
    assert found[at("sbus_refused_total", code="kicked")] == 0
    build = at(
        "sbus_build_info",
        version="9.8.7",
        protocol="1",
        python="3.13",
        step="python",
        dialect="slash",
        address='/run/x"y',
    )
    assert found[build] == 1


def test_metrics_of_workers(fake_bus: FakeAdmin) -> None:
    found = samples(openmetrics_text(BusCollector(fake_bus.bus_address, users_max=10)))
    assert found[at("sbus_worker_up", worker="0")] == 1
    assert found[at("sbus_worker_up", worker="1")] == 0
    expected = {
        "sbus_worker_start_time_seconds": 1_700_000_000,
        "sbus_worker_silence_seconds": 0.3,
        "sbus_worker_deaths_total": 2,
        "sbus_worker_cpu_seconds_total": 754,
        "sbus_worker_busy_ratio": 0.25,
        "sbus_worker_memory_bytes": 52_428_800,
        "sbus_worker_clients": 125,
        "sbus_messages_published_total": 12_345,
        "sbus_received_bytes_total": 4_718_592,
        "sbus_deliveries_due_total": 61_725,
        "sbus_deliveries_total": 61_000,
        "sbus_delivered_bytes_total": 23_000_000,
        "sbus_undelivered_total": 4,
        "sbus_backlog_messages": 6,
        "sbus_backlog_bytes": 291_960,
        "sbus_stalls_total": 8,
        "sbus_subscriptions": 345,
        "sbus_route_lookups_total": 12_000,
        "sbus_route_misses_total": 1_500,
        "sbus_latency_seconds_count": 1_000,
        "sbus_latency_seconds_sum": 2.345,
    }
    assert {name: found[at(name, worker="1")] for name in expected} == expected
    histogram = {"5e-05": 600, "0.0001": 980, "0.001": 995, "1.0": 999, "+Inf": 1_000}
    for bound, count in histogram.items():
        assert found[at("sbus_latency_seconds_bucket", worker="1", le=bound)] == count


def test_metrics_of_operations(fake_bus: FakeAdmin) -> None:
    found = samples(openmetrics_text(BusCollector(fake_bus.bus_address, users_max=10)))
    tick, callback = (
        {"process": "1", "operation": "tick"},
        {"process": "front", "operation": "callback"},
    )
    assert found[at("sbus_longest_operation_seconds", **tick)] == 20.0
    assert found[at("sbus_longest_operation_cpu_seconds", **tick)] == 0.0021
    assert found[at("sbus_longest_operation_seconds", **callback)] == 0.0125
    assert found[at("sbus_longest_operation_cpu_seconds", **callback)] == 0.012


def test_metrics_of_users(fake_bus: FakeAdmin) -> None:
    found = samples(openmetrics_text(BusCollector(fake_bus.bus_address, users_max=10)))
    who = {"uid": "3000000003", "user": "3000000003"}
    expected = {
        "sbus_user_connections": 3,
        "sbus_user_connections_limit": 77,
        "sbus_user_subscriptions": 345,
        "sbus_user_subscriptions_limit": 131_072,
        "sbus_user_backlog_bytes": 1_258_291,
        "sbus_user_backlog_limit_bytes": 67_108_864,
        "sbus_user_waiting_bytes": 2_048,
        "sbus_user_blocking_clients": 4,
        "sbus_user_discarded_total": 715,
        "sbus_user_held_seconds": 9,
    }
    assert {name: found[at(name, **who)] for name in expected} == expected
    assert found[at("sbus_user_connections", uid="0", user="root")] == 0


@pytest.mark.parametrize("users_max", [0, 1, 3, 4])
def test_users_max_bounds_the_users_with_metrics(fake_bus: FakeAdmin, users_max: int) -> None:
    found = samples(openmetrics_text(BusCollector(fake_bus.bus_address, users_max=users_max)))
    shown = [place for place in found if place[0] == "sbus_user_connections"]
    assert len(shown) == users_max
    assert found[at("sbus_users_left_out")] == 5 - users_max
    assert any(request["verb"] == "users" for request in fake_bus.requests) == (users_max > 0)


def test_users_who_use_most_of_a_limit_have_metrics(tmp_path: Path) -> None:
    """Of 1,200 users, over several pages: one with many connections, one whose backlog is full, and
    one who lost messages. The others are ahead of them by their ids, and equal."""
    limits = Limits(user_connections_max=100).user
    idle = {"connections": 1, "backlog_bytes": 0, "discarded": 0, "held_seconds": 0.0}
    culprits = {
        3_000_000_900: {"connections": 50},
        3_000_001_100: {"backlog_bytes": limits.backlog_bytes_max},
        3_000_001_199: {"discarded": 7},
    }

    def page(request: dict[str, Any]) -> UsersResult:
        uids = range(max(request["after"] + 1, 3_000_000_000), 3_000_001_200)[: request["limit"]]
        found = [
            sample.user(uid=uid, limits=limits, **{**idle, **culprits.get(uid, {})}) for uid in uids
        ]
        return UsersResult(users=found, next=uids[-1] if uids else None)

    with FakeAdmin(tmp_path, {"version": VERSION, "stats": STATS, "users": page}) as admin:
        found = samples(openmetrics_text(BusCollector(admin.bus_address, users_max=4)))
    shown = [dict(labels)["uid"] for name, labels in found if name == "sbus_user_connections"]
    assert shown == ["3000000000", *map(str, culprits)]


def test_every_family_is_exported_once(fake_bus: FakeAdmin) -> None:
    """`sbus_table_*` have no samples here: the table was in use."""
    families = families_of(openmetrics_text(BusCollector(fake_bus.bus_address, users_max=10)))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    listed = {family.name.removesuffix("_total").removesuffix("_info") for family in FAMILIES}
    assert listed - set(names) == {"sbus_table_used_bytes", "sbus_table_size_bytes"}
    assert set(names) <= listed
    kinds = {family.name: family.type for family in families}
    for family in FAMILIES:
        name = family.name.removesuffix("_total").removesuffix("_info")
        assert kinds.get(name, family.kind) == family.kind
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.meaning.endswith(".")


def test_a_bus_that_is_down_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collector = BusCollector(str(tmp_path / "bus"), users_max=10)
    for _ in range(3):
        assert samples(openmetrics_text(collector)) == {at("sbus_up"): 0}
    assert capsys.readouterr().err.count("cannot connect to") == 1
    with FakeAdmin(tmp_path, {"version": VERSION, "stats": STATS, "users": users}):
        assert samples(openmetrics_text(collector))[at("sbus_up")] == 1
    assert samples(openmetrics_text(collector)) == {at("sbus_up"): 0}
    assert capsys.readouterr().err.count("cannot connect to") == 1


def test_a_malformed_address_is_an_error() -> None:
    with pytest.raises(AddressError, match="odd number"):
        BusCollector("/dev/unix/abstract/001", users_max=1)


# -- files -----------------------------------------------------------------------------------------
def test_the_textfile_is_complete_and_readable_by_others(
    fake_bus: FakeAdmin, tmp_path: Path
) -> None:
    path = tmp_path / "sbus.prom"
    umask = os.umask(0o077)
    try:
        write_textfile(str(path), BusCollector(fake_bus.bus_address, users_max=10), None)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    families = {
        family.name: family
        for family in text_parser.text_string_to_metric_families(path.read_text())
    }
    assert families["sbus_messages_published"].type == "counter"
    assert families["sbus_latency_seconds"].type == "histogram"
    assert sorted(tmp_path.iterdir()) == sorted([path, Path(fake_bus.address)]), (
        "nothing is left beside it"
    )


@pytest.mark.parametrize("moment", ["tempfile.mkstemp", "os.rename"])
def test_a_signal_waits_until_the_file_is_in_place(
    fake_bus: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It arrives in the call that makes the temporary file, or in the one that moves it."""
    module, _, name = moment.partition(".")
    call = getattr(sys.modules[module], name)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        result = call(*arguments, **options)
        signal.raise_signal(signal.SIGTERM)
        return result

    monkeypatch.setattr(sys.modules[module], name, interrupted)
    before = signal.getsignal(signal.SIGTERM)
    path = tmp_path / "sbus.prom"
    try:
        with pytest.raises(SystemExit) as ended:
            write_textfile(str(path), BusCollector(fake_bus.bus_address, users_max=10), 60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 0
    assert "\nsbus_up 1.0\n" in path.read_text()
    assert sorted(tmp_path.iterdir()) == sorted([path, Path(fake_bus.address)])


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "sbus.prom" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        replace_file(str(tmp_path / "sbus.prom"), b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["sbus.prom"]


# -- the verb --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words",
    [
        ["--textfile", "a", "--listen", "b"],
        ["--interval", "3"],
        ["--mode", "0600"],
        ["--listen", "b", "--mode", "0999"],
        ["--listen", "b", "--mode", "1777"],
        ["--textfile", "a", "--interval", "0"],
        ["--users-max", "-1"],
    ],
)
def test_options_that_exclude_each_other(words: list[str]) -> None:
    assert (
        CliRunner().invoke(metrics, words, obj=(None, {})).exit_code == click.UsageError.exit_code
    )


def test_a_missing_package_is_reported_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.setitem(sys.modules, name, None)
    for part in ("collector", "families", "textfile", "http_exporter"):
        monkeypatch.delitem(sys.modules, f"sbus.cli.metrics.{part}", raising=False)
    outcome = CliRunner().invoke(metrics, [], obj=(None, {}))
    assert isinstance(outcome.exception, ConfigurationError)
    assert str(outcome.exception).endswith("pip install 'sbusd[metrics]'")
