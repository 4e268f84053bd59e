"""The command line of sbusd agrees with the modules that it is too fast to import."""

import subprocess
import sys
from enum import Enum

import pytest

import sbus.protocol.keys
import sbus.shared.shared_memory
from sbus.bus_options import OPTIONS, WORKERS_MAX, available_workers
from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft
from tests.support.programs_here import sbusd_here

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


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["-a", ""], 1, "the address is empty"),
        (["-u", "root", "-u", ""], 1, "there is no user ''"),
        (["-u", "4294967295"], 1, "user id 4294967295 is out of range"),
        (["-u", "-1"], 1, "there is no user '-1'"),
        (["--limit", "log_byte=1"], 1, "there is no limit 'log_byte'; did you mean log_bytes?"),
        (["--workers", "0"], 2, "'--workers': 0 is not in the range"),
        (["--workers", "65"], 2, "'--workers': 65 is not in the range"),
        (["--dialect", "colon"], 2, "'--dialect': 'colon' is not one of"),
        (["-x"], 2, "-x"),
        (["-a"], 2, "'-a' requires an argument"),
        (["surplus"], 2, "extra argument (surplus)"),
    ],
)
def test_a_mistake_is_one_line_and_a_status(
    words: list[str],
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended, output, errors = sbusd_here(["--print-config", *words], monkeypatch, capsys)
    assert (ended, output) == (status, "")
    assert errors.startswith("sbusd: ")
    assert errors.endswith("\n")
    assert errors.count("\n") == 1
    assert line in errors
