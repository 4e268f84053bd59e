"""The pidfile of one bus at a time, whatever a bus that was killed has left."""

import fcntl
import os
from pathlib import Path

import pytest

from sbus.cli.sbusd.pidfile import Pidfile
from sbus.errors import ConfigurationError
from tests.support.children import child_that, children_at_once
from tests.support.users import become, directory_for_everybody, needs_root


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pid"


def test_it_holds_the_process_id_until_it_is_removed(path: Path) -> None:
    pidfile = Pidfile(str(path))
    assert path.read_text() == f"{os.getpid()}\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["pid"]
    pidfile.remove()
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("content", ["", "1\n", "4711\n"])
def test_one_that_was_left_is_replaced_and_reported(
    path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Process 1 always runs."""
    path.write_text(content)
    Pidfile(str(path)).remove()
    left_by = content.strip() or "?"
    reported = f"sbusd: replaced pidfile {path}, which process {left_by} left behind\n"
    assert capsys.readouterr().err == reported


@pytest.mark.parametrize("is_left", [False, True])
def test_of_several_at_once_one_has_it(path: Path, is_left: bool) -> None:
    for _ in range(8):
        if is_left:
            path.write_text("4711\n")
        with children_at_once(4, lambda: Pidfile(str(path)), ConfigurationError) as owners:
            assert owners == 1
            with pytest.raises(ConfigurationError, match="in use"):
                Pidfile(str(path))
        assert os.listdir(path.parent) == ["pid"]
        path.unlink()


@pytest.mark.parametrize("content", ["precious", "12 13\n", "12345678901\n", "1\n2\n", "-1\n"])
def test_any_other_file_is_left_alone(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="/pid exists and is not a pidfile"):
        Pidfile(str(path))
    assert path.read_text() == content


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_what_is_no_file_is_left_alone(path: Path, kind: str) -> None:
    if kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(ConfigurationError, match="/pid exists and is not a pidfile"):
        Pidfile(str(path))
    assert os.listdir(path.parent) == ["pid"]


def test_a_link_is_not_followed(path: Path) -> None:
    target = path.parent / "target"
    target.write_text("1\n")
    path.symlink_to(target)
    with pytest.raises(ConfigurationError, match=r"cannot make pidfile .*: Too many levels"):
        Pidfile(str(path))
    assert target.read_text() == "1\n"


@needs_root
def test_the_lock_of_a_user_who_may_only_read_it_does_not_count() -> None:
    with directory_for_everybody() as directory:
        path = directory / "pid"
        path.write_text("4711\n")

        def lock() -> object:
            become()()
            file = path.open()
            fcntl.flock(file, fcntl.LOCK_EX)
            fcntl.lockf(file, fcntl.LOCK_SH)
            return file

        with child_that(lock):
            Pidfile(str(path)).remove()
