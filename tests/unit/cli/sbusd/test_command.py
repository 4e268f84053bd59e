"""The command line of sbusd agrees with the modules that it is too fast to import."""

import subprocess
import sys
from enum import Enum

import pytest

import sbus.protocol.keys
import sbus.shared.shared_memory
from sbus.bus_options import OPTIONS, WORKERS_MAX, available_workers
from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft

OPTIONS_BY_NAME = {option.name: option for option in OPTIONS}


def test_dialects_are_those_of_the_protocol() -> None:
    assert set(OPTIONS_BY_NAME["dialect"].choices) == set(sbus.protocol.keys.DIALECTS)


@pytest.mark.parametrize(
    ("name", "policy"), [("soft", Soft), ("hard", Hard), ("order", BacklogOrder)]
)
def test_flood_control_is_that_of_the_protocol(name: str, policy: type[Enum]) -> None:
    option = OPTIONS_BY_NAME[name]
    assert list(option.choices) == [choice.value for choice in policy]
    assert option.default == getattr(FloodControl(), name).value


def test_the_maximum_of_workers_is_that_of_the_shared_memory() -> None:
    assert WORKERS_MAX == sbus.shared.shared_memory.WORKERS_MAX
    assert 1 <= available_workers() <= WORKERS_MAX


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    heavy = ("trio", "msgspec", "tomllib", "sbus.broker")
    program = (
        "import sys, sbus.cli.sbusd.command; "
        f"sys.exit(any(name in sys.modules for name in {heavy}))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
