"""`--config`, `--check-config` and `--print-config`, as an administrator uses them."""

import os
import tomllib
from pathlib import Path

import msgspec

from sbus.limits import Limits
from tests.broker.test_command_line_errors import run_sbusd

GOOD = """
    [limits]
    packet_bytes_max = 200
    key_bytes_max = 50
    [users.root]
    connections_max = 3
    [[rules]]
    deny = ["publish"]
    keys = ["audit/"]
    """


def test_a_good_file_is_summarised_in_one_line_and_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "good").write_text(GOOD)
    done = run_sbusd(tmp_path, "-a", "bus", "-p", "pid", "--check-config", "good")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "good: bus: 0, limits: 2, users with limits of their own: 1, rules: 1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


def test_a_mistake_in_a_file_is_one_line_and_a_status(tmp_path: Path) -> None:
    """The same from `--check-config` and at start; `tests/unit/cli/sbusd/test_plan.py` has all."""
    (tmp_path / "bad").write_text("[bus]\nnonsense = 1\n")
    for options in (["--check-config", "bad"], ["-fa", "no/bus", "--config", "bad"]):
        done = run_sbusd(tmp_path, *options)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("sbusd: bad: bus.nonsense: there is no such field")
        assert done.stderr.count("\n") == 1


ALL = r"""
    [bus]
    address = "run/bus"
    users = ["root", 7]
    soft = "block"
    dialect = "dot"
    admin_address = "none"
    [limits]
    log_interval_seconds = 0.000001
    user_held_seconds_max = 1e9
    ["users"."0"]
    held_seconds_max = 0.5
    [[rules]]
    deny = ["publish", "subscribe"]
    users = ["root", 1]
    keys = ["\u007f\t\u0001 \U0001F600\"\\", "a.*"]
    [[rules]]
    allow = ["block"]
    """


def test_the_printed_configuration_is_a_file_with_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/all").write_text(ALL)
    options = ("--print-config", "-p", "pid", "--hard", "error", "--limit", "key_bytes_max=99")
    printed = run_sbusd(tmp_path, *options, "--config", "sub/all")
    assert (printed.returncode, printed.stderr) == (0, "")
    said = tomllib.loads(printed.stdout)
    assert said["bus"] == {
        "address": f"{tmp_path}/sub/run/bus",
        "foreground": False,
        "pidfile": f"{tmp_path}/pid",
        "users": ["root", 7],
        "exit_when_empty": False,
        "group": False,
        "others": False,
        "replace": False,
        "admin_address": "none",
        "run_as": str(os.geteuid()),
        "disconnect_descriptors": False,
        "workers": min(64, len(os.sched_getaffinity(0))),
        "placement": "load",
        "dialect": "dot",
        "soft": "block",
        "hard": "error",
        "order": "queue",
        "log": "auto",
    }
    limits = msgspec.structs.asdict(Limits())
    changed = {"log_interval_seconds": 1e-6, "user_held_seconds_max": 1e9, "key_bytes_max": 99}
    assert said["limits"] == {**limits, **changed}
    given = tomllib.loads(ALL)
    assert (said["users"], said["rules"]) == (given["users"], given["rules"])
    (tmp_path / "again").write_text(printed.stdout)
    again = run_sbusd(tmp_path, "--print-config", "--config", "again")
    assert again.stdout == printed.stdout


def test_an_invalid_configuration_is_not_printed(tmp_path: Path) -> None:
    done = run_sbusd(tmp_path, "--print-config", "--limit", "log_bytes=1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sbusd: log_bytes=1: ")
