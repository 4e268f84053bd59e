"""The pytest plugin, as a project that uses sbus has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sbus.testing import start_bus
from tests.support.bus import PROJECT

TIMEOUT_S = 60.0
TESTS = """
import sbus

def test_one(sbus_address):
    with sbus.blocking.connect() as bus:
        assert bus.address == sbus_address
        bus.subscribe("a")
        bus.publish("a", "x")
        assert bus.receive(timeout_seconds=60).payload == b"x"

async def main():
    async with sbus.connect() as bus:
        await bus.sync()

def test_another_one(sbus_address):
    import asyncio
    asyncio.run(main())
"""


def test_a_bus_is_there_for_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "sbus.testing", "-c", "/dev/null"]
    result = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(PROJECT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "2 passed" in result.stdout, result.stdout + result.stderr


def test_a_bus_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="No such option"),
        start_bus(tmp_path, "--no-such-option"),
    ):
        pass


def test_a_bus_that_is_not_ready_in_time_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"the bus was not ready within 0.0 s"),
        start_bus(tmp_path, timeout_seconds=0.0),
    ):
        pass


def test_the_bus_ends_with_the_block(tmp_path: Path) -> None:
    with start_bus(tmp_path, "--dialect", "dot") as address:
        assert os.path.exists(address)
    assert not os.path.exists(address)
