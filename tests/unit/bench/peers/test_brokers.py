"""Finding and starting what is compared."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus.bench import BenchmarkFailed
from sbus.bench.peers.brokers import (
    PEERS,
    NotInstalled,
    Peer,
    find,
    fresh_socket,
    serving,
    variant,
)
from sbus.bench.programs import running
from sbus.bench.servers import RunSettings, Server


def test_a_program_that_is_missing_is_told_with_its_package() -> None:
    with pytest.raises(NotInstalled, match="apt-get install some-package"):
        find("no-such-program", "some-package")


@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if peer.package])
def test_a_missing_peer_is_found_missing_and_not_failing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbus.bench.peers.brokers.PROGRAM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # where no gcc finds zmq.h
    with pytest.raises(NotInstalled, match="apt-get install"):
        PEERS[name].start(RunSettings(directory=tmp_path)).__enter__()


def test_a_server_that_ends_does_not_start(tmp_path: Path) -> None:
    run = RunSettings(directory=tmp_path)
    path = fresh_socket(run, "some.socket")
    command = ["sh", "-c", "echo no configuration >&2"]
    with (
        pytest.raises(BenchmarkFailed, match="some does not start: no configuration"),
        serving(run, "some", command, path),
    ):
        pass


def test_nothing_is_left_of_a_server_before(tmp_path: Path) -> None:
    run = RunSettings(directory=tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(fresh_socket(run, "some.socket"))
    assert not Path(fresh_socket(run, "some.socket")).exists()


@pytest.mark.parametrize("before", [None, "before"])
def test_a_variant_sets_a_variable_for_its_server_only(
    before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before:
        monkeypatch.setenv("SOME_CHOICE", before)

    @contextlib.contextmanager
    def start(run: RunSettings) -> Iterator[Server]:
        command = ["sh", "-c", "echo seen value=$SOME_CHOICE; read end"]
        with running("some", command, run.directory, None) as child:
            yield Server("", child, 1)

    peer = variant(Peer(protocol="sbus", start=start, is_sbus=True), "SOME_CHOICE", "7")
    with peer.start(RunSettings(directory=tmp_path)) as server:
        assert server.child.wait_for_report("seen", 10) == {"value": 7}
    assert os.environ.get("SOME_CHOICE") == before
