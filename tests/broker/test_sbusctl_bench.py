"""`sbusctl bench` on a real bus: counts, not times."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

import sbus
from sbus.cli.sbusctl.bench_load import Client, Helper, Subscribers
from sbus.cli.sbusctl.bench_verb import WORKS
from sbus.errors import BusError
from tests.support.bus import SBUSCTL, Bus, running_bus, sbusd_environment
from tests.support.processes import stopped

SHORT = ("--seconds", "0.2", "--clients", "3", "--subscriptions", "20")
TIMEOUT_SECONDS = 60.0
BACKLOG_MESSAGES = 100


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    limits = (f"backlog_messages_max={BACKLOG_MESSAGES}", "user_subscriptions_max=1000")
    options = [f"--limit={limit}" for limit in limits]
    with running_bus(tmp_path_factory.mktemp("bus"), *options) as bus:
        yield bus


def test_every_work_accounts_for_every_message(bus: Bus) -> None:
    done = bus.sbusctl("bench", "--json", *SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["work"] for one in results] == list(WORKS)
    for one in results:
        assert one["published"] > 0
        trips_lost = 0 if one["work"] != "flood" else one["lost"]
        assert one["delivered"] + one["lost"] >= one["published"] * one["subscribers"] - trips_lost
        assert one["size_bytes"] == 64
    fan_out = results[WORKS.index("fan-out")]
    assert fan_out["subscribers"] == 3
    assert results[WORKS.index("subscriptions")]["subscriptions"] == 21
    assert results[WORKS.index("flood")]["publishers"] == 3


def test_the_number_and_the_size_of_messages_are_chosen(bus: Bus) -> None:
    words = ("--messages", "7", "--size", "1000", "throughput", "latency")
    done = bus.sbusctl("bench", "--json", *words)
    throughput, latency = map(json.loads, done.stdout.splitlines())
    for one in (throughput, latency):
        assert (one["published"], one["delivered"], one["lost"]) == (7, 7, 0)
        assert one["size_bytes"] == 1000


def test_an_administrator_sees_cpu_time_and_others_do_not(bus: Bus) -> None:
    words = ("bench", "--json", "latency", *SHORT)
    assert json.loads(bus.sbusctl(*words).stdout)["broker_cpu_us"] is not None
    done = bus.sbusctl("--admin-address", "/nowhere", *words)
    assert done.returncode == 0
    assert json.loads(done.stdout)["broker_cpu_us"] is None


def test_all_keys_have_the_prefix_of_the_benchmark(bus: Bus) -> None:
    with sbus.blocking.connect(bus.address) as other:
        other.subscribe("")
        other.sync()
        done = bus.sbusctl("bench", "--json", *SHORT, "--messages", "5")
        published = sum(json.loads(line)["published"] for line in done.stdout.splitlines())
        keys = {message.key for message in other.receive_many(published)}
    assert len(keys) >= len(WORKS)
    assert all(key.startswith(b"sbusctl/bench/") for key in keys)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--size", "409600", "latency"), "packet-too-long"),
        (("--size", "409600", "flood"), "packet-too-long"),
        (("--subscriptions", "2000", "subscriptions"), "subscriptions"),
    ],
)
def test_a_refusal_is_one_line(bus: Bus, words: tuple[str, ...], reason: str) -> None:
    done = bus.sbusctl("bench", *words)
    assert done.returncode == 1
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("sbusctl: ")
    assert reason in line


def test_messages_that_the_bus_drops_are_counted(bus: Bus) -> None:
    """Its subscriber does not read while more is published than a socket and a backlog hold."""

    def connect() -> Client:
        return sbus.blocking.connect(bus.address, losses="report")

    with connect() as publisher, Subscribers(connect, b"bench/lost", 1, 100) as receiving:
        with stopped(receiving.pid):
            for _ in range(5_000):
                publisher.publish("bench/lost", bytes(64))
            publisher.sync()
        receiving.wait_until(5_000)
        progress = receiving.progress
    assert progress.received + progress.lost == 5_000
    assert progress.received >= BACKLOG_MESSAGES
    assert progress.lost > 0


def test_the_death_of_the_subscribers_is_an_error() -> None:
    with Helper(lambda pipe: sys.exit(1)) as helper, pytest.raises(BusError, match="ended"):
        helper.report()


def test_the_subscribers_leave_when_the_benchmark_was_killed(bus: Bus) -> None:
    words = [*SBUSCTL, "-a", bus.address, "bench", "--seconds", "60", "throughput"]
    with (
        subprocess.Popen(words, env=sbusd_environment()) as process,
        sbus.blocking.connect(bus.address) as other,
    ):
        other.subscribe("sbusctl/bench/")
        other.sync()
        other.receive(timeout_seconds=TIMEOUT_SECONDS)  # now its load runs
        process.kill()
        process.wait()
        while other.me(timeout_seconds=TIMEOUT_SECONDS).user.connections > 1:
            pass
