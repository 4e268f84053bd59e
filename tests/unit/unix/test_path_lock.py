"""A path's lock: one holder at a time, and nothing left of it."""

import os
from pathlib import Path

import pytest

from sbus.unix import path_lock as module
from sbus.unix.path_lock import path_lock
from tests.support.threads import Task


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "bus")


def test_there_is_a_file_only_while_it_is_held(path: str) -> None:
    with path_lock(path):
        assert os.listdir(os.path.dirname(path)) == ["bus.sbusd-lock"]
        assert os.stat(f"{path}.sbusd-lock").st_mode & 0o777 == 0o600
    assert os.listdir(os.path.dirname(path)) == []


def test_a_lock_that_a_killed_process_left_is_free(path: str) -> None:
    Path(f"{path}.sbusd-lock").touch()
    with path_lock(path):
        assert os.path.exists(f"{path}.sbusd-lock")
    assert not os.path.exists(f"{path}.sbusd-lock")


def test_a_lock_that_is_held_for_long_is_an_error(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAIT_SECONDS_MAX", 0.02)
    with path_lock(path):
        with (
            pytest.raises(TimeoutError, match=r"another process holds .*/bus\.sbusd-lock"),
            path_lock(path),
        ):
            pass
        assert os.path.exists(f"{path}.sbusd-lock")


def test_holders_exclude_each_other(path: str) -> None:
    """Also those that open the file just before its holder removes it."""
    holders = []

    def hold_often() -> None:
        for _ in range(300):
            with path_lock(path):
                holders.append(1)
                assert len(holders) == 1
                holders.pop()

    tasks = [Task(hold_often) for _ in range(3)]
    for task in tasks:
        task.join()
    assert os.listdir(os.path.dirname(path)) == []


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), path_lock(str(tmp_path / "no" / "bus")):
        pass
