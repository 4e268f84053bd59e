"""Metrics of made-up results, read with the client library's own parser."""

import json
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
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
from sbus.protocol import admin
from sbus.protocol.admin_results import (
    Fill,
    Latency,
    LongestOperation,
    Rates,
    StatsResult,
    Traffic,
    UserReport,
    UsersResult,
    VersionResult,
    WorkerReport,
)

RATES = Rates(
    window_seconds=0,
    messages_in_per_second=0,
    bytes_in_per_second=0,
    delivered_per_second=0,
    delivered_bytes_per_second=0,
    discarded_per_second=0,
    refused_per_second=0,
)


def traffic(base: int) -> Traffic:
    return Traffic(
        messages_in=base + 1,
        bytes_in=base + 2,
        accepted=base + 3,
        accepted_bytes=base + 4,
        delivered=base + 5,
        delivered_bytes=base + 6,
        discarded={"soft": base + 7, "hard": base + 8},
        discarded_bytes=base + 9,
        undelivered=base + 10,
        undelivered_bytes=base + 11,
        backlog=base + 12,
        backlog_bytes=base + 13,
        refused={"reserved": base + 14},
        stalls=base + 15,
        slow_sends=base + 19,
        subscriptions=base + 16,
        route_lookups=base + 17,
        route_misses=base + 18,
        latency=Latency(bounds_us=[10, 1000, 2_000_000], counts=[5, 3, 0, 2], sum_us=4_500_000),
    )


def worker(number: int, state: str) -> WorkerReport:
    made = {
        "worker": number,
        "pid": 4711,
        "state": state,
        "started_at": 100.5,
        "deaths": 2,
        "silence_seconds": 0.25,
        "cpu_seconds": 12.5,
        "busy_share": 0.75,
        "memory_bytes": 30_000_000,
        "clients": 40,
        "traffic": msgspec.to_builtins(traffic(1000 * number)),
        "rates": msgspec.to_builtins(RATES),
    }
    return msgspec.convert(made, WorkerReport)


STATS = StatsResult(
    step="python",
    address="/run/x",
    started_at=99.5,
    uptime_seconds=60,
    draining=True,
    clients=80,
    users=5,
    connections_accepted=81,
    connections_refused={"not-admitted": 3},
    stalled_clients=4,
    log=Fill(100, 8192),
    table=None,
    traffic=traffic(5000),
    rates=RATES,
    workers=[worker(0, "serving"), worker(1, "silent")],
    longest_operations=[
        LongestOperation(process="1", operation="tick", seconds=0.5, cpu_seconds=0.25),
        LongestOperation(process="front", operation="hold", seconds=0.75, cpu_seconds=0.125),
    ],
)
VERSION = VersionResult(
    version="9.8.7",
    protocol=1,
    python="3.13",
    step="python",
    address='/run/x"y',
    dialect="slash",
    workers=2,
    pid=1,
    started_at=99.5,
)


def user(uid: int) -> UserReport:
    return UserReport(
        uid=uid,
        connections=uid + 1,
        subscriptions=uid + 2,
        subscription_bytes=uid + 3,
        match_steps=0,
        backlog_bytes=uid + 4,
        socket_bytes=0,
        waiting_bytes=uid + 5,
        blocking_clients=uid + 6,
        held_seconds=1.5,
        discarded=uid + 7,
        limits=Limits(user_connections_max=77).user,
    )


NOBODYS_UIDS = [3_000_000_001, 3_000_000_002, 3_000_000_003]


class FakeBus:
    """An admin socket with these answers; `asked` are the requests."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.asked: list[dict[str, object]] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"{path}.admin")
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                while packet := client.recv(admin.REQUEST_BYTES_MAX):
                    client.send(self._answer(json.loads(packet)))

    def _answer(self, request: dict[str, object]) -> bytes:
        self.asked.append(request)
        result: msgspec.Struct
        if request["verb"] == "version":
            result = VERSION
        elif request["verb"] == "stats":
            result = STATS
        else:
            after, limit = request["after"], request["limit"]
            assert isinstance(after, int)
            assert isinstance(limit, int)
            rest = [uid for uid in [0, *NOBODYS_UIDS] if uid > after]
            page = rest[: min(limit, 2)]
            result = UsersResult(
                users=[user(uid) for uid in page],
                next=page[-1] if len(rest) > len(page) else None,
            )
        return msgspec.json.encode({"version": 1, "id": request["id"], "result": result})

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def fake_bus(tmp_path: Path) -> Iterator[FakeBus]:
    bus = FakeBus(tmp_path / "bus")
    yield bus
    bus.close()


def families_of(exposition: bytes) -> list[Metric]:
    parse = openmetrics_parser.text_string_to_metric_families
    return list(parse(exposition.decode()))  # type: ignore[no-untyped-call]


def samples(exposition: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in families_of(exposition):
        for sample in family.samples:
            place = (sample.name, frozenset(sample.labels.items()))
            assert place not in found
            found[place] = sample.value
    return found


def at(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_metrics_of_the_bus(fake_bus: FakeBus) -> None:
    found = samples(openmetrics_text(BusCollector(fake_bus.address, users_max=10)))
    assert found[at("sbus_up")] == 1
    assert found[at("sbus_start_time_seconds")] == 99.5
    assert found[at("sbus_draining")] == 1
    assert found[at("sbus_clients")] == 80
    assert found[at("sbus_users")] == 5
    assert found[at("sbus_stalled_clients")] == 4
    assert found[at("sbus_connections_accepted_total")] == 81
    assert found[at("sbus_connections_refused_total", code="not-admitted")] == 3
    assert found[at("sbus_connections_refused_total", code="too-many-users")] == 0
    assert found[at("sbus_log_used_bytes")] == 100
    assert found[at("sbus_log_size_bytes")] == 8192
    assert at("sbus_table_used_bytes") not in found, "the table was in use"
    assert found[at("sbus_discarded_total", reason="soft")] == 5007
    assert found[at("sbus_discarded_total", reason="hard")] == 5008
    assert found[at("sbus_discarded_total", reason="quota")] == 0
    assert found[at("sbus_refused_total", code="reserved")] == 5014
    assert found[at("sbus_refused_total", code="no-nul")] == 0
    build = at(
        "sbus_build_info",
        version="9.8.7",
        protocol="1",
        python="3.13",
        dialect="slash",
        address='/run/x"y',
    )
    assert found[build] == 1


def test_metrics_of_workers(fake_bus: FakeBus) -> None:
    found = samples(openmetrics_text(BusCollector(fake_bus.address, users_max=10)))
    assert found[at("sbus_worker_up", worker="0")] == 1
    assert found[at("sbus_worker_up", worker="1")] == 0
    expected = {
        "sbus_worker_start_time_seconds": 100.5,
        "sbus_worker_silence_seconds": 0.25,
        "sbus_worker_deaths_total": 2,
        "sbus_worker_cpu_seconds_total": 12.5,
        "sbus_worker_busy_ratio": 0.75,
        "sbus_worker_memory_bytes": 30_000_000,
        "sbus_worker_clients": 40,
        "sbus_messages_published_total": 1001,
        "sbus_received_bytes_total": 1002,
        "sbus_deliveries_due_total": 1003,
        "sbus_deliveries_total": 1005,
        "sbus_delivered_bytes_total": 1006,
        "sbus_undelivered_total": 1010,
        "sbus_backlog_messages": 1012,
        "sbus_backlog_bytes": 1013,
        "sbus_stalls_total": 1015,
        "sbus_subscriptions": 1016,
        "sbus_route_lookups_total": 1017,
        "sbus_route_misses_total": 1018,
        "sbus_latency_seconds_count": 10,
        "sbus_latency_seconds_sum": 4.5,
    }
    assert {name: found[at(name, worker="1")] for name in expected} == expected
    histogram = {"1e-05": 5, "0.001": 8, "2.0": 8, "+Inf": 10}
    for bound, count in histogram.items():
        assert found[at("sbus_latency_seconds_bucket", worker="1", le=bound)] == count


def test_metrics_of_operations(fake_bus: FakeBus) -> None:
    found = samples(openmetrics_text(BusCollector(fake_bus.address, users_max=10)))
    tick, hold = (
        {"process": "1", "operation": "tick"},
        {"process": "front", "operation": "hold"},
    )
    assert found[at("sbus_longest_operation_seconds", **tick)] == 0.5
    assert found[at("sbus_longest_operation_cpu_seconds", **tick)] == 0.25
    assert found[at("sbus_longest_operation_seconds", **hold)] == 0.75
    assert found[at("sbus_longest_operation_cpu_seconds", **hold)] == 0.125


def test_metrics_of_users(fake_bus: FakeBus) -> None:
    found = samples(openmetrics_text(BusCollector(fake_bus.address, users_max=10)))
    who = {"uid": "3000000003", "user": "3000000003"}
    expected = {
        "sbus_user_connections": 4,
        "sbus_user_connections_limit": 77,
        "sbus_user_subscriptions": 5,
        "sbus_user_subscriptions_limit": 131_072,
        "sbus_user_backlog_bytes": 7,
        "sbus_user_backlog_limit_bytes": 67_108_864,
        "sbus_user_waiting_bytes": 8,
        "sbus_user_blocking_clients": 9,
        "sbus_user_discarded_total": 10,
        "sbus_user_held_seconds": 1.5,
    }
    expected = {
        name: figure if "limit" in name or "held" in name else figure + 3_000_000_000
        for name, figure in expected.items()
    }
    assert {name: found[at(name, **who)] for name in expected} == expected
    assert found[at("sbus_user_connections", uid="0", user="root")] == 1


@pytest.mark.parametrize("users_max", [0, 1, 3, 4])
def test_users_max_bounds_the_users_with_metrics(fake_bus: FakeBus, users_max: int) -> None:
    found = samples(openmetrics_text(BusCollector(fake_bus.address, users_max=users_max)))
    shown = [place for place in found if place[0] == "sbus_user_connections"]
    assert len(shown) == users_max
    assert found[at("sbus_users_left_out")] == 5 - users_max
    assert any(request["verb"] == "users" for request in fake_bus.asked) == (users_max > 0)


def test_every_family_is_exported_once(fake_bus: FakeBus) -> None:
    """`sbus_table_*` have no samples here: the table was in use."""
    families = families_of(openmetrics_text(BusCollector(fake_bus.address, users_max=10)))
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
    bus = FakeBus(tmp_path / "bus")
    try:
        assert samples(openmetrics_text(collector))[at("sbus_up")] == 1
    finally:
        bus.close()
    assert samples(openmetrics_text(collector)) == {at("sbus_up"): 0}
    assert capsys.readouterr().err.count("cannot connect to") == 1


def test_a_malformed_address_is_an_error() -> None:
    with pytest.raises(AddressError, match="odd number"):
        BusCollector("/dev/unix/abstract/001", users_max=1)


# -- files -----------------------------------------------------------------------------------------
def test_the_textfile_is_complete_and_readable_by_others(fake_bus: FakeBus, tmp_path: Path) -> None:
    path = tmp_path / "sbus.prom"
    umask = os.umask(0o077)
    try:
        write_textfile(str(path), BusCollector(fake_bus.address, users_max=10), None)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    families = {
        family.name: family
        for family in text_parser.text_string_to_metric_families(path.read_text())
    }
    assert families["sbus_messages_published"].type == "counter"
    assert families["sbus_latency_seconds"].type == "histogram"
    assert sorted(tmp_path.iterdir()) == sorted([path, Path(f"{fake_bus.address}.admin")]), (
        "nothing is left beside it"
    )


@pytest.mark.parametrize("moment", ["tempfile.mkstemp", "os.rename"])
def test_a_signal_waits_until_the_file_is_in_place(
    fake_bus: FakeBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
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
            write_textfile(str(path), BusCollector(fake_bus.address, users_max=10), 60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 0
    assert "\nsbus_up 1.0\n" in path.read_text()
    assert sorted(tmp_path.iterdir()) == sorted([path, Path(f"{fake_bus.address}.admin")])


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
    assert str(outcome.exception).endswith("pip install 'sbus[metrics]'")


def test_users_are_identified_by_uid() -> None:
    """Two users may have the same name."""
    for family in FAMILIES:
        if family.name.startswith("sbus_user_"):
            assert family.labels[:2] == ("uid", "user")
