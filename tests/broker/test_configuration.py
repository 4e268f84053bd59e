"""`--config` and `--check-config`, as an administrator meets them."""

from pathlib import Path

import pytest

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


def test_a_good_file_is_told_in_one_line_and_nothing_starts(tmp_path: Path) -> None:
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
            "bad: rules[0].keys[0]: '!' is the bus's own; secret messages have rules of their own",
        ),
        ("[limits]\nlog_bytes = 1", "log_bytes=1: must be a multiple of 4096 and"),
        ("[limits", "bad: this is no TOML: "),
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


def test_the_file_is_checked_for_the_dialect_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text(GOOD.replace("audit/", "a.!.*"))
    assert run_sbusd(tmp_path, "--check-config", "rules", "--dialect", "dot").returncode == 0
    assert run_sbusd(tmp_path, "--check-config", "rules").returncode == 0
    (tmp_path / "rules").write_text(GOOD.replace("audit/", "a/!/*.b"))
    assert run_sbusd(tmp_path, "--check-config", "rules", "--dialect", "dot").returncode == 0
    assert run_sbusd(tmp_path, "--check-config", "rules").returncode == 1


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
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
