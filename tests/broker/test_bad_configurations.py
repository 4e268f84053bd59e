"""Bad configurations: one line that names the place, status 1, and no effect on a running bus.

One bus runs all the time and is asked to read one of each kind. After each its
configuration is still the first one: reading its own file again changes nothing.
`tests/unit/cli/sbusd/test_plan.py` has all mistakes.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.admin import Admin, administer
from tests.support.bad_configurations import GOOD, Bad, bad_configurations
from tests.support.bus import running_bus
from tests.support.programs_here import sbusd_here
from tests.support.raw_client import RawClient

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


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("bus")
    file = directory / "sbus.toml"
    file.write_text(GOOD)
    with (
        running_bus(directory, "--config", str(file)) as bus,
        administer(bus) as admin,
        bus.connect() as client,
    ):
        client.control(b"!/notices/on")
        client.sub(b"")
        yield Running(file, admin, client)


def said_by_sbusd(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What sbusd says when it ends with status 1."""
    status, output, errors = sbusd_here(arguments, monkeypatch, capsys)
    assert (status, output) == (1, "")
    assert errors.endswith("\n")
    assert errors.startswith("sbusd: ")
    line = errors[len("sbusd: ") : -1]
    assert line.isprintable()
    assert len(line) < 1000
    return line


def complaint(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The error of a file, which is the same from `--check-config` and at start."""
    line = said_by_sbusd(["--check-config", str(file)], monkeypatch, capsys)
    nowhere = str(file.parent / "no" / "bus")
    assert said_by_sbusd(["-fa", nowhere, "--config", str(file)], monkeypatch, capsys) == line
    return line


ONE_OF_EACH_KIND = {case.place[:4]: case for case in bad_configurations()}


@pytest.mark.parametrize("case", ONE_OF_EACH_KIND.values(), ids=lambda case: case.name)
def test_a_mistake_in_a_file_is_named_and_changes_nothing(
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
