"""Bad configurations: one line that names the place, status 1, and no effect on a running bus.

One bus runs all the time and is asked to read each of them. After each its configuration is still
the first one: reading its own file again changes nothing.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbus.cli.sbusd import command
from tests.support.admin import Admin, administer
from tests.support.bad_configurations import GOOD, Bad, bad_configurations
from tests.support.bus import SBUSD, running_bus, sbusd_environment
from tests.support.raw_client import TIMEOUT_S, RawClient
from tests.support.users import WITHOUT_FILE_PRIVILEGES

NOTHING: dict[str, list[Any]] = {"applied": [], "needs_restart": [], "unanswered": []}


class Running(NamedTuple):
    """A bus, its configuration file, and a client that stays."""

    file: Path
    admin: Admin
    client: RawClient

    def check_untouched(self) -> None:
        """The bus and its workers still have the settings of the good file."""
        self.file.write_text(GOOD)
        assert self.admin.ask("reload") == NOTHING
        self.client.pub(b"audit/x", b"")
        self.client.pub(b"x", b"1")
        assert self.client.sync() == [
            b"CMSG !/error\0not-allowed you may not publish under this key",
            b"MSG x\x001",
        ]


@contextmanager
def running_in(directory: Path, command: Sequence[str] = SBUSD) -> Iterator[Running]:
    file = directory / "sbus.toml"
    file.write_text(GOOD)
    with (
        running_bus(directory, "--config", str(file), command=command) as bus,
        administer(bus) as admin,
        bus.connect() as client,
    ):
        client.control(b"!/notices/on")
        client.sub(b"")
        yield Running(file, admin, client)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_in(tmp_path_factory.mktemp("bus")) as running:
        yield running


def said_by_sbusd(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What sbusd says when it ends with status 1, in this process: it does not get far."""
    monkeypatch.setattr(sys, "argv", ["sbusd", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (1, "")
    assert printed.err.endswith("\n")
    assert printed.err.startswith("sbusd: ")
    line = printed.err[len("sbusd: ") : -1]
    assert line.isprintable()
    assert len(line) < 1000
    return line


def complaint(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The error of a file, which is the same from `--check-config` and at start."""
    line = said_by_sbusd(["--check-config", str(file)], monkeypatch, capsys)
    assert said_by_sbusd(["-f", "--config", str(file)], monkeypatch, capsys) == line
    return line


@pytest.mark.parametrize("case", list(bad_configurations()), ids=lambda case: case.name)
def test_every_mistake_in_a_file_is_named(
    case: Bad,
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    running.file.write_bytes(case.data)
    line = complaint(running.file, monkeypatch, capsys)
    beginning = f"{running.file}: {case.place}"
    assert fnmatchcase(line, f"{beginning.replace('[', '[[]')}*"), line
    assert running.admin.fault("reload") == ("failed", line)
    running.check_untouched()


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: None, "cannot read {}: No such file or directory"),
        (Path.mkdir, "cannot read {}: Is a directory"),
        (make_fifo, "{}: not a regular file; name a TOML file"),
        (make_loop, "cannot read {}: Too many levels of symbolic links"),
    ],
    ids=["missing", "a directory", "a pipe", "a loop"],
)
def test_what_is_not_a_file_is_an_error(
    make: Callable[[Path], None],
    expected: str,
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    running.file.unlink()
    try:
        make(running.file)
        line = complaint(running.file, monkeypatch, capsys)
        assert line == expected.format(running.file)
        assert running.admin.fault("reload") == ("failed", line)
    finally:
        if running.file.is_dir():
            running.file.rmdir()
        running.file.unlink(missing_ok=True)
    running.check_untouched()


def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    command = (*WITHOUT_FILE_PRIVILEGES, *SBUSD)
    with running_in(tmp_path, command) as running:
        running.file.chmod(0)
        expected = f"cannot read {running.file}: Permission denied"
        for options in (("--check-config",), ("-f", "--config")):
            ended = subprocess.run(
                [*command, *options, str(running.file)],
                env=sbusd_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            said = (ended.returncode, ended.stdout, ended.stderr)
            assert said == (1, "", f"sbusd: {expected}\n")
        assert running.admin.fault("reload") == ("failed", expected)
        running.file.chmod(0o600)
        running.check_untouched()


@settings(
    max_examples=3 * settings().max_examples // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_a_damaged_file_is_an_error_or_still_valid(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    data: st.DataObject,
) -> None:
    """All three refuse it alike, or the running bus accepts it."""
    at = data.draw(st.integers(0, len(GOOD)))
    cut = data.draw(st.integers(0, 12))
    put = data.draw(st.one_of(st.binary(max_size=6), st.sampled_from([b'"', b"]", b"\n", b"-1"])))
    running.file.write_bytes(GOOD[:at].encode() + put + GOOD[at + cut :].encode())
    monkeypatch.setattr(sys, "argv", ["sbusd", "--check-config", str(running.file)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    said = capsys.readouterr().err
    if ended.value.code:
        assert said == f"sbusd: {running.admin.fault('reload')[1]}\n"
    else:
        running.admin.ask("reload")
        running.file.write_text(GOOD)
        running.admin.ask("reload")
    running.check_untouched()
