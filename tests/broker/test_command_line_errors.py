"""Errors of sbusd: one line, an exit status, and nothing left behind."""

import os
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.bus import SBUSD, sbusd_environment

TIMEOUT_S = 20


def run_sbusd(
    directory: Path, *arguments: str, pass_fds: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SBUSD, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=directory,
        env=sbusd_environment(),
        check=False,
        pass_fds=pass_fds,
    )


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["-a", ""], 1, r"the address is empty"),
        (["-a", "x" * 108], 1, r"108 bytes are too long for the path of a socket, 107"),
        (["-a", "no/bus"], 1, r"cannot bind no/bus: No such file or directory"),
        (["-a", "."], 1, r"\. exists and is not a socket"),
        (["-ra", "."], 1, r"cannot replace \.: "),
        (["-a", "/dev/fd/x"], 1, r"/dev/fd/x: not the number of a file descriptor"),
        (["-a", "/dev/fd/99"], 1, r"cannot use /dev/fd/99: Bad file descriptor"),
        (["-a", "/dev/fd/0"], 1, r"cannot use /dev/fd/0: it is not a socket"),
        (["-a", "/dev/unix/abstract/"], 1, r"begins with the byte 00"),
        (["-a", "/dev/unix/abstract/6161"], 1, r"begins with the byte 00"),
        (["-a", "/dev/unix/abstract/00611"], 1, r"odd number of hexadecimal digits \(5\)"),
        (["-a", "/dev/unix/abstract/00xy"], 1, r"only hexadecimal digits may follow"),
        (["-a", "/dev/unix/abstract/" + "00" * 109], 1, r"109 bytes are too long .* 108"),
        (["-u", "no-such-user"], 1, r"there is no user 'no-such-user'"),
        (["-u", "root", "-u", ""], 1, r"there is no user ''"),
        (["-u", "4294967295"], 1, r"user id 4294967295 is out of range"),
        (["-u", "-1"], 1, r"there is no user '-1'"),
        (["--limit", "log_bytes"], 1, r"give it as NAME=VALUE"),
        (["--limit", "log_byte=1"], 1, r"there is no limit 'log_byte'; did you mean .*log_bytes"),
        (["--limit", "xyzzy=1"], 1, r"there is no limit 'xyzzy'; --limit help lists them"),
        (["--limit", "log_bytes=much"], 1, r"limit log_bytes cannot be 'much'"),
        (["--limit", "log_bytes="], 1, r"limit log_bytes cannot be ''"),
        (["--limit", "log_bytes=-1"], 1, r"limit log_bytes cannot be '-1'"),
        (["--limit", "stop_seconds_max=nan"], 1, r"limit stop_seconds_max cannot be 'nan'"),
        (["--workers", "0"], 2, r"'--workers': 0 is not in the range"),
        (["--workers", "65"], 2, r"'--workers': 65 is not in the range"),
        (["--dialect", "colon"], 2, r"'--dialect': 'colon' is not one of"),
        (["-x"], 2, r"-x"),
        (["-a"], 2, r"'-a' requires an argument"),
        (["surplus"], 2, r"extra argument \(surplus\)"),
        (["a\nb"], 2, r"extra argument \(a\\nb\)"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_error_is_one_line_and_a_status(
    tmp_path: Path, arguments: list[str], status: int, line: str
) -> None:
    defaults = ["-p", "pid", "-a", "bus"]
    for in_foreground in ([], ["-f"]):
        done = run_sbusd(tmp_path, *defaults, *in_foreground, *arguments)
        assert done.returncode == status
        assert done.stdout == ""
        assert re.fullmatch(rf"sbusd: .*{line}.*\n", done.stderr), done.stderr
        assert os.listdir(tmp_path) == []


def test_existing_file_is_named_and_stays(tmp_path: Path) -> None:
    (tmp_path / "bus").write_text("precious")
    done = run_sbusd(tmp_path, "-fa", "bus")
    assert done.returncode == 1
    assert done.stderr == (
        "sbusd: bus exists and is not a socket: remove it, or name another address\n"
    )
    assert (tmp_path / "bus").read_text() == "precious"


def test_abstract_address_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(b"\0" + os.urandom(107))
        name = other.getsockname()
        assert isinstance(name, bytes)
        address = f"/dev/unix/abstract/{name.hex()}"
        done = run_sbusd(tmp_path, "-rfa", address)
    assert done.returncode == 1
    assert done.stderr == f"sbusd: {address} is in use: another process listens there\n"


def test_bus_that_cannot_start_says_so_once(tmp_path: Path) -> None:
    """No kernel carries packets of that size, which only the broker itself finds out."""
    for in_foreground in ([], ["-f"]):
        options = ["-p", "pid", "-a", "bus", "--limit", "packet_bytes_max=2000000000"]
        done = run_sbusd(tmp_path, *in_foreground, *options)
        assert done.returncode == 1
        assert done.stdout == ""
        assert re.fullmatch(r"sbusd: .+\n", done.stderr), done.stderr
        assert os.listdir(tmp_path) == []


def test_passed_down_socket_of_another_type_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.bind(str(tmp_path / "stream"))
        number = stream.fileno()
        done = run_sbusd(tmp_path, "-fa", f"/dev/fd/{number}", pass_fds=[number])
    assert done.returncode == 1
    assert re.fullmatch(rf"sbusd: cannot use /dev/fd/{number}: .*SOCK_SEQPACKET.*\n", done.stderr)
    assert (tmp_path / "stream").is_socket()


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
