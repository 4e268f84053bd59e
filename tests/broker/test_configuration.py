"""`--config`, `--check-config` and `--print-config`, as an administrator uses them."""

import os
import tomllib
from pathlib import Path

import msgspec
import pytest

from sbus.limits import Limits
from tests.broker.test_command_line_errors import run_sbusd
from tests.support.bus import running_bus

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            GOOD.replace("audit", "!"),
            "bad: rules[0].keys[0]: '!' is reserved; the keys of secret messages name their ",
        ),
        ("[limits]\nlog_bytes = 1", "log_bytes=1: must be a multiple of 4096 and"),
        ("[limits", "bad: not valid TOML: "),
    ],
)
def test_a_bad_file_is_one_line_and_a_status(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "bad").write_text(text)
    for options in (["--check-config", "bad"], ["--config", "bad"], ["-f", "--config", "bad"]):
        done = run_sbusd(tmp_path, "-a", "bus", "-p", "pid", *options)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"sbusd: {expected}")
        assert done.stderr.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["bad"]


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


def test_the_printed_defaults_can_be_read_back(tmp_path: Path) -> None:
    (tmp_path / "printed").write_text(run_sbusd(tmp_path, "--print-config").stdout)
    assert run_sbusd(tmp_path, "--check-config", "printed").returncode == 0


def test_an_invalid_configuration_is_not_printed(tmp_path: Path) -> None:
    done = run_sbusd(tmp_path, "--print-config", "--limit", "log_bytes=1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sbusd: log_bytes=1: ")


def test_the_file_is_checked_for_the_dialect_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text(GOOD.replace("audit/", "a.!.*"))
    assert run_sbusd(tmp_path, "--check-config", "rules", "--dialect", "dot").returncode == 0
    assert run_sbusd(tmp_path, "--check-config", "rules").returncode == 0
    (tmp_path / "rules").write_text(GOOD.replace("audit/", "a/!/*.b"))
    assert run_sbusd(tmp_path, "--check-config", "rules", "--dialect", "dot").returncode == 0
    assert run_sbusd(tmp_path, "--check-config", "rules").returncode == 1


def test_the_command_line_has_precedence_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "sbus.toml"
    config.write_text(GOOD)
    options = ("--config", str(config), "--limit", "packet_bytes_max=100")
    with running_bus(tmp_path, *options, workers=1) as bus:
        for packet, code in (
            (b"MSG a\0" + bytes(95), b"packet-too-long"),
            (b"MSG " + b"k" * 51 + b"\0", b"key-too-long"),
        ):
            with bus.connect() as client:
                client.control(b"!/notices/on")
                client.sub(b"a")
                client.send(b"MSG a\0" + bytes(94))
                assert client.sync() == [b"MSG a\0" + bytes(94)]
                client.send(packet)
                (last,) = client.receive_until_closed()
                assert last.startswith(b"CMSG !/error\0" + code)
