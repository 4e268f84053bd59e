"""Every benchmark runs, small, against the relay and the broker; the tests check counts, not times.

Each generator must also notice a bus that loses or alters a message, or its figures would mean
nothing.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbus.bench import BenchmarkFailed, footprint
from sbus.bench.curves import CURVES, measure_curves
from sbus.bench.peers.brokers import PEERS
from sbus.bench.peers.comparison import WORKS, compare
from sbus.bench.programs import compile_programs, generator, running
from sbus.bench.servers import RunSettings, Start
from sbus.bench.soak import Crowd, soak
from tests.support.bus import STOP_SECONDS_MAX, wait_until_gone
from tests.support.needs import without

SIZE = 110
PACKAGED = {name for name, peer in PEERS.items() if peer.package}
SBUS = [name for name, peer in PEERS.items() if peer.is_sbus]
MAY_LOSE = {(name, work) for name in SBUS for work in ("saturated", "batched")}
"""sbus may drop messages where the publisher has no window."""
ALIKE = {"sbus-8", "sbus-2-apart"}
"""Peers that differ in nothing but their numbers of workers from others."""
STARTS: dict[str, Callable[[Path], Start]] = {
    "relay": lambda directory: RunSettings(directory=directory).relay("each"),
    "broker": lambda directory: RunSettings(directory=directory).broker(1),
    "broker with two workers": lambda directory: RunSettings(directory=directory).broker(2),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bench")
    compile_programs(directory)
    return directory


@pytest.fixture
def run(programs: Path) -> RunSettings:
    return RunSettings(directory=programs)


def only(samples: object) -> Any:
    """The sample of a case that was measured once."""
    assert isinstance(samples, list)
    (sample,) = samples
    return sample


def test_a_footprint(run: RunSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "SETTLING_SECONDS", 0.0)
    crowd = footprint.Crowd(clients=2, patterns=2 * footprint.SUBSCRIBERS)
    result = footprint.take(run, crowd, workers=2, seconds=0.1)
    assert len(result.samples) == len(result.rows) == 4
    for those in result.samples.values():
        sample = only(those)
        assert sample.ready_seconds > 0
        assert 0 < sample.idle_bytes < sample.serving_bytes


def test_a_point_of_every_curve(run: RunSettings) -> None:
    """The largest size, and otherwise small values."""
    values = {
        "workers": (2,),
        "size": (400_000,),
        "literal-changes": (1_000,),
        "wildcard-changes": (1_000,),
    }
    curves = {
        name: replace(curve, values=values.get(name, curve.values[1:2]))
        for name, curve in CURVES.items()
    }
    samples = measure_curves(run, curves, 0.05)
    assert {(name, work) for name, _, work in samples} == {
        (name, work) for name, curve in curves.items() for work in curve.works
    }
    for (_, _, work), those in samples.items():
        sample = only(those)
        assert sample.received > 0
        assert sample.lost == 0
        assert sample.cpu_ns > 0
        assert (sample.p50_ns is not None) is (work == "round trip")


def short_soak(start: Start, crowd: Crowd, directory: Path) -> dict[str, int]:
    """The final figures of a soak of two short intervals."""
    run = RunSettings(directory=directory)
    result = soak(run, start, crowd, seconds=0.6, interval_seconds=0.3, settings={})
    assert len(result.rows) == 2
    final = result.samples["final"]
    assert isinstance(final, dict)
    return final


def test_a_soak_of_the_broker_accounts_for_every_message(programs: Path) -> None:
    crowd = Crowd(publishers=4, subscribers=16, slow=4)
    final = short_soak(STARTS["broker with two workers"](programs), crowd, programs)
    assert final["violations"] == 0
    assert final["received"] > final["sent"] > 0


@contextlib.contextmanager
def faulty_bus(path: Path, alter: Callable[[int, bytes], list[bytes]]) -> Iterator[str]:
    """A bus in a thread: what is published goes to the one subscriber, as `alter` changes it.

    `alter` gets the number of the message, from 0, and returns what is sent in its place.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    subscribers: list[socket.socket] = []

    def serve(client: socket.socket) -> None:
        number = 0
        with contextlib.suppress(ConnectionError):  # a generator that has seen enough
            while packet := client.recv(65_536):
                if packet.startswith(b"SUB "):
                    subscribers.append(client)
                elif packet == b"CMSG !/cred/whoami":
                    client.send(packet + b"\0!/cred/0/0/0")
                elif packet.startswith(b"MSG "):
                    for changed in alter(number, packet) if subscribers else ():
                        subscribers[0].send(changed)
                    number += 1

    clients: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            clients.append(client)
            if client.recv(1, socket.MSG_PEEK) == b"":  # the end of the test
                return
            threads.append(threading.Thread(target=serve, args=(client,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield str(path)
    finally:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as last:
            last.connect(str(path))
            last.shutdown(socket.SHUT_WR)
            accepting.join(10)
        for thread in threads:
            thread.join(10)
        for sock in (*clients, listener):
            sock.close()
        path.unlink()


def lose(number: int, packet: bytes) -> list[bytes]:
    return [] if number == 50 else [packet]


def double(number: int, packet: bytes) -> list[bytes]:
    return [packet] * (2 if number == 50 else 1)


def alter_last_byte(number: int, packet: bytes) -> list[bytes]:
    return [packet[:-1] + b"?"] if number == 50 else [packet]


def fall_silent(number: int, packet: bytes) -> list[bytes]:
    return [] if number >= 50 else [packet]


@pytest.mark.parametrize("name", [name for name in PEERS if name not in ALIKE])
def test_every_work_through_a_peer(run: RunSettings, name: str) -> None:
    """Nothing is lost but by sbus, which may drop what a subscriber is too slow for."""
    result = compare(run, {name: PEERS[name]}, SIZE, 0.05)
    if name in PACKAGED and any("is not installed" in note for note in result.notes):
        pytest.skip(without(name, PEERS[name].package))
    assert result.succeeded, result.notes
    samples = result.samples["samples"]
    assert isinstance(samples, dict)
    assert list(samples) == list(WORKS)
    for work, by_peer in samples.items():
        sample = only(by_peer[name])
        assert sample.received > 0
        assert sample.cpu_ns > 0
        assert sample.lost == 0 or (name, work) in MAY_LOSE


@pytest.mark.parametrize("mode", [("paced", 100_000), ("window", 32), ("batches", 32)])
def test_a_load_counts_lost_messages(programs: Path, tmp_path: Path, mode: tuple[str, int]) -> None:
    with faulty_bus(tmp_path / "bus", lose) as address:
        arguments = ("sbus", address, 1, SIZE, *mode)
        with generator("load", arguments, programs, None) as load:
            done = load.ask("for 100", "done", 30)
    assert done["lost"] == 1
    assert done["received"] == done["published"] - 1


def test_a_load_waits_only_so_long_for_the_last_message(programs: Path, tmp_path: Path) -> None:
    """The bus stops after 50 messages, so the window stays full."""
    with faulty_bus(tmp_path / "bus", fall_silent) as address:
        arguments = ("sbus", address, 1, SIZE, "window", 32)
        with generator("load", arguments, programs, None) as load:
            done = load.ask("for 100", "done", 30)
    assert done["lost"] == 32
    assert done["received"] == done["published"] - 32 < 50


@pytest.mark.parametrize("fault", [double, alter_last_byte])
def test_a_load_does_not_accept_faulty_messages(
    programs: Path, tmp_path: Path, fault: Callable[[int, bytes], list[bytes]]
) -> None:
    with faulty_bus(tmp_path / "bus", fault) as address:
        arguments = ("sbus", address, 1, SIZE, "window", 32)
        with (
            pytest.raises(BenchmarkFailed, match=r"in place of|was altered"),
            generator("load", arguments, programs, None) as load,
        ):
            load.ask("for 100", "done", 30)


def test_a_soak_counts_messages_lost_without_notice(programs: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(faulty_bus(tmp_path / "bus", lose))
        arguments = (address, 1, 1, 0, 1, SIZE)
        load = stack.enter_context(generator("flood", arguments, programs, None))
        while load.ask("report", "report", 30)["sent"] <= 100:
            pass
        assert load.ask("stop", "stopped", 30)["violations"] > 0
        assert "missing" in load.error_output()


def test_a_failure_leaves_no_process(programs: Path) -> None:
    pids: list[int] = []
    with contextlib.suppress(BenchmarkFailed), STARTS["broker"](programs)() as server:
        pids += server.pids()
        raise BenchmarkFailed("whatever")
    assert pids
    assert all(wait_until_gone(pid, STOP_SECONDS_MAX) for pid in pids)


def test_a_silent_program_fails_at_its_deadline(programs: Path) -> None:
    with (
        running("sleep", ["sleep", "60"], programs, None) as child,
        pytest.raises(BenchmarkFailed, match="said nothing"),
    ):
        child.wait_for_report("ready", 0.2)
    assert child.process.returncode is not None
