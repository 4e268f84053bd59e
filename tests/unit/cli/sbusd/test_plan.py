"""What sbusd is to start: the command line wins over the file, the file over the defaults."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from sbus.cli.sbusd.plan import CommandLine
from sbus.errors import ConfigurationError
from sbus.limits import Limits
from sbus.unix.address import PathAddress
from tests.support.bad_configurations import GOOD, bad_configurations

FILE = """
[bus]
address = "bus"
dialect = "dot"
workers = 3
[limits]
key_bytes_max = 100
packet_bytes_max = 200
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sbus.toml"
    path.write_text(FILE)
    return path


def test_without_a_file_there_are_the_defaults() -> None:
    plan = CommandLine({}, (), None).plan()
    settings = plan.configuration(is_abstract=False).settings
    assert (settings.dialect, settings.limits, settings.log) == ("slash", Limits(), "auto")
    with pytest.raises(ConfigurationError, match="started without a file"):
        plan.read_again()


def test_the_command_line_wins_over_the_file(file: Path) -> None:
    plan = CommandLine({"workers": 2}, ("packet_bytes_max=300",), str(file)).plan()
    assert plan.addresses.bus == PathAddress(str(file.parent / "bus"))
    settings = plan.configuration(is_abstract=False).settings
    assert (settings.workers, settings.dialect) == (2, "dot")
    assert settings.limits == Limits(key_bytes_max=100, packet_bytes_max=300)


def test_the_same_file_is_read_again_from_another_directory(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    plan = CommandLine({"workers": 2}, (), file.name).plan()
    monkeypatch.chdir("/")
    file.write_text(FILE.replace("100", "101").replace("3", "4"))
    again = plan.read_again().configuration(is_abstract=False).settings
    assert (again.workers, again.limits.key_bytes_max) == (2, 101)


def test_a_file_is_read_in_the_dialect_of_the_command_line(file: Path) -> None:
    file.write_text('[[rules]]\ndeny = ["publish"]\nkeys = ["a/!/*.b"]')
    CommandLine({"dialect": "dot"}, (), str(file)).plan()
    with pytest.raises(ConfigurationError, match=r"rules\[0\].keys\[0\]: "):
        CommandLine({}, (), str(file)).plan()


def test_users_that_are_not_found_open_the_bus_to_nobody() -> None:
    """Without any users, everybody may connect whom the socket's mode lets."""
    command_line = CommandLine({"users": ("no-such-user",)}, (), None)
    with pytest.raises(ConfigurationError, match="there is no user 'no-such-user'"):
        command_line.plan()
    plan = command_line.plan(may_miss_names=True)
    configuration = plan.configuration(is_abstract=False)
    assert configuration.missing_names == ("there is no user 'no-such-user'",)
    assert configuration.settings.admit_uids == frozenset({command_line.owner.uid})


def test_names_are_looked_up_again_without_reading_the_file_again(file: Path) -> None:
    plan = CommandLine({}, (), str(file)).plan(may_miss_names=True)
    file.write_text("nonsense")
    again = plan.look_up_names()
    assert again.configuration(is_abstract=False) == plan.configuration(is_abstract=False)


def test_every_mistake_in_a_file_is_named_in_one_line(file: Path) -> None:
    file.write_text(GOOD)
    CommandLine({}, (), str(file)).plan().check()
    for case in bad_configurations():
        file.write_bytes(case.data)
        with pytest.raises(ConfigurationError) as refused:
            CommandLine({}, (), str(file)).plan().check()
        line = str(refused.value)
        beginning = f"{file}: {case.place}"
        assert fnmatchcase(line, f"{beginning.replace('[', '[[]')}*"), line
        assert line.isprintable()
        assert len(line) < 1000
