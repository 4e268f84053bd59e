"""What the command line promises, against the parts that keep the promise.

They are not imported by the command itself, so that it starts fast.
"""

import subprocess
import sys
from enum import Enum

import click
import pytest

import sbus.protocol.keys
import sbus.shared.shared_memory
from sbus.bus_options import WORKERS_MAX, available_workers
from sbus.cli.sbusd import command
from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft


def option(name: str) -> click.Option:
    (found,) = [param for param in command.sbusd.params if param.name == name]
    assert isinstance(found, click.Option)
    return found


def test_dialects_are_those_of_the_protocol() -> None:
    choices = option("dialect").type
    assert isinstance(choices, click.Choice)
    assert set(choices.choices) == set(sbus.protocol.keys.DIALECTS)


@pytest.mark.parametrize(
    ("name", "policy"),
    [("soft", Soft), ("hard", Hard), ("order", BacklogOrder)],
)
def test_flood_control_is_that_of_the_protocol(name: str, policy: type[Enum]) -> None:
    choices = option(name).type
    assert isinstance(choices, click.Choice)
    assert list(choices.choices) == [choice.value for choice in policy]
    assert option(name).default == getattr(FloodControl(), name).value


def test_nothing_heavy_is_loaded_before_it_is_needed() -> None:
    heavy = ("trio", "msgspec", "tomllib", "sbus.broker")
    program = (
        "import sys, sbus.cli.sbusd.command; "
        f"sys.exit(any(name in sys.modules for name in {heavy}))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_most_workers_are_as_many_as_shared_memory_has_room_for() -> None:
    assert WORKERS_MAX == sbus.shared.shared_memory.WORKERS_MAX
    assert 1 <= available_workers() <= WORKERS_MAX
