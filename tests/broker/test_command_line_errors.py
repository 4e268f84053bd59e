"""Errors of sbusd: one line, an exit status, and nothing left behind."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.bus import SBUSD, sbusd_environment

TIMEOUT_S = 60.0


def run_sbusd(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SBUSD, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=directory,
        env=sbusd_environment(),
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["-a", "no/bus"], 1, r"cannot bind no/bus: No such file or directory"),
        (["-a", "/dev/fd/0"], 1, r"cannot use /dev/fd/0: it is not a socket"),
        (["a\nb"], 2, r"extra argument \(a\\nb\)"),
        # No kernel carries packets of that size, which only the broker itself finds out.
        (["--limit", "packet_bytes_max=2000000000"], 1, r"."),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_error_is_one_line_and_a_status(
    tmp_path: Path, arguments: list[str], status: int, line: str
) -> None:
    """In the background, where the process that was started tells it, and in the foreground."""
    for in_foreground in ([], ["-f"]):
        done = run_sbusd(tmp_path, "-p", "pid", "-a", "bus", *in_foreground, *arguments)
        assert done.returncode == status
        assert done.stdout == ""
        assert re.fullmatch(rf"sbusd: .*{line}.*\n", done.stderr), done.stderr
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", ["abc", "99", "1"])
def test_a_link_to_no_bus_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    """A bus gives it to the program that is to take its place."""
    monkeypatch.setenv("SBUS_PREDECESSOR_FD", number)
    result = run_sbusd(tmp_path, "-a", "bus")
    assert result.returncode == 1
    assert re.fullmatch(rf"sbusd: SBUS_PREDECESSOR_FD='{number}' is no socket .*\n", result.stderr)


def test_help_version_and_limits_are_no_errors(tmp_path: Path) -> None:
    shown = run_sbusd(tmp_path, "--help")
    assert shown.returncode == 0
    for option in ["-a", "-f", "-p", "-u", "-c", "-g", "-o", "-r"]:
        assert f"  {option}, --" in shown.stdout
    for option in ["--workers", "--dialect", "--limit", "--version"]:
        assert f"  {option} " in shown.stdout
    version = run_sbusd(tmp_path, "--version")
    assert version.returncode == 0
    assert re.fullmatch(r"sbusd[ ,].+\n", version.stdout)
    limits = run_sbusd(tmp_path, "--limit", "help")
    assert limits.returncode == 0
    assert re.search(r"^packet_bytes_max +409600$", limits.stdout, re.MULTILINE)
    assert os.listdir(tmp_path) == []
