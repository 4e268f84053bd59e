"""The programs of docs/cookbook.md do what the page says."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import sbus
from tests.support.bus import PROJECT, Bus, running_bus, sbusd_environment
from tests.support.threads import wait_until

TIMEOUT_S = 60.0
PROGRAM_LINES_MAX = 40
PAGE = (PROJECT / "docs/cookbook.md").read_text()
PROGRAMS = dict(
    re.findall(r"<!-- (\S+) -->\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
)

Client = sbus.blocking.Connection[sbus.Message]


@contextmanager
def running(bus: Bus, directory: Path, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    program = directory / name
    program.write_text(PROGRAMS[name])
    process = subprocess.Popen(
        [sys.executable, program, *words],
        env={**sbusd_environment(), "SBUS_ADDRESS": bus.address},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its children
        process.communicate(timeout=TIMEOUT_S)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


@pytest.fixture
def client(bus: Bus) -> Iterator[Client]:
    with sbus.blocking.connect(bus.address) as client:
        yield client


def test_every_program_is_short() -> None:
    assert len(PROGRAMS) == PAGE.count("```python")
    assert {
        name for name, text in PROGRAMS.items() if text.count("\n") > PROGRAM_LINES_MAX
    } == set()


def test_the_calculator(bus: Bus, tmp_path: Path, client: Client) -> None:
    with running(bus, tmp_path, "calculator.py", "serve") as server:
        assert line(server) == "ready"
        with running(bus, tmp_path, "calculator.py", "ask", "1", "2", "3") as asker:
            assert line(asker) == "6"
        with pytest.raises(sbus.RequestFailed, match="invalid literal"):
            client.request("sums", "one", timeout_seconds=TIMEOUT_S)


def test_the_resizers(bus: Bus, tmp_path: Path, client: Client) -> None:
    names = [f"{number}.jpeg" for number in range(10)]
    with running(bus, tmp_path, "resizer.py") as staying:
        assert line(staying) == "ready"
        with running(bus, tmp_path, "resizer.py") as killed:
            assert line(killed) == "ready"
            client.publish_many("jobs/resize", names, timeout_seconds=TIMEOUT_S)
            done = {line(killed)}
        while len(done) < len(names):
            done.add(line(staying))
    assert done == {f"resized {name}" for name in names}


def test_the_sensors(bus: Bus, tmp_path: Path, client: Client) -> None:
    with running(bus, tmp_path, "sensors.py", "keep"):
        while not is_kept(client):
            pass
        for value in ("20", "21"):
            client.publish("sensors/kitchen", value)
        client.sync(timeout_seconds=TIMEOUT_S)
        with running(bus, tmp_path, "sensors.py", "show") as shown:
            assert line(shown) == "sensors/kitchen 21"
            client.publish("sensors/hall", "19", timeout_seconds=TIMEOUT_S)
            assert line(shown) == "sensors/hall 19"


def is_kept(client: Client) -> bool:
    try:
        with client.last_values("sensors/", timeout_seconds=1):
            return True
    except TimeoutError:
        return False


def test_the_progress(bus: Bus, tmp_path: Path, client: Client) -> None:
    with running(bus, tmp_path, "progress.py", "import", "2") as process:
        assert line(process) == "ready"
        for part, percent in (("a", 50), ("b", 100), ("a", 100)):
            client.publish(f"progress/import/{part}", str(percent))
            client.publish(f"progress/export/{part}", "1")
        client.sync(timeout_seconds=TIMEOUT_S)
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert output.splitlines()[-1] == "100 %"
        assert process.returncode == 0


def test_the_log_shipper(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_bus(tmp_path) as bus:
        shipper = running(bus, tmp_path, "shipper.py", str(log))
        process = shipper.__enter__()
        assert line(process) == "ready"
        ship(bus, log, "before\x1b")
    try:
        with running_bus(tmp_path, "--replace") as bus:
            wait_until(lambda: "connection was lost" in log.read_text(), "it is back")
            ship(bus, log, "after")
    finally:
        shipper.__exit__(None, None, None)
    first, *gaps, last = log.read_text().splitlines()
    assert (first, last) == ("logs/app before\x1b", "logs/app after")
    assert gaps
    assert all(gap.startswith("-- ") for gap in gaps)


def ship(bus: Bus, log: Path, text: str) -> None:
    """Publish a line and wait until it is in the file."""
    with sbus.blocking.connect(bus.address) as client:
        client.publish("logs/app", text)
        client.sync(timeout_seconds=TIMEOUT_S)
    wait_until(lambda: text in log.read_text(), "it is in the file")


def test_the_supervisor(bus: Bus, tmp_path: Path) -> None:
    with running(bus, tmp_path, "supervisor.py", "2") as process:
        joined = dict(line(process).split(" ", 1) for _ in range(2))
        assert joined.keys() == {"worker-0", "worker-1"}
        pid = joined["worker-1"].split(" ")[0]
        os.kill(int(pid), signal.SIGKILL)
        assert line(process) == f"worker-1 {pid} left"
        name, again, what = line(process).split(" ")
        assert (name, what) == ("worker-1", "joined")
        assert again != pid
