"""The files of a bus are removed by the last bus that has them, and by no other."""

import os
from pathlib import Path

import pytest

from sbus.unix.bus_files import BusFiles
from sbus.unix.owned_path import OwnedPath


@pytest.fixture
def pidfile(tmp_path: Path) -> Path:
    path = tmp_path / "pid"
    path.write_text("1234567\n")
    return path


def files_of(path: Path, **options: bool) -> BusFiles:
    return BusFiles([OwnedPath.claim(str(path))], os.open(path, os.O_WRONLY), **options)


def test_a_bus_removes_its_files(pidfile: Path) -> None:
    files = files_of(pidfile)
    files.remove()
    files.remove()
    files.close()
    assert not pidfile.exists()


def test_what_was_handed_over_stays(pidfile: Path) -> None:
    files = files_of(pidfile)
    files.hand_over()
    files.remove()
    files.close()
    assert pidfile.read_text() == "1234567\n"


def test_they_belong_to_another_bus_when_that_takes_over(pidfile: Path) -> None:
    files = files_of(pidfile, is_ours=False)
    files.remove()
    assert pidfile.exists()
    files.take_over()
    assert pidfile.read_text() == f"{os.getpid()}\n"
    files.remove()
    files.close()
    assert not pidfile.exists()


def test_the_remover_removes_them_when_the_pipe_is_closed(pidfile: Path) -> None:
    read_fd, write_fd = os.pipe()
    files = BusFiles([OwnedPath.claim(str(pidfile))], None, write_fd)
    files.remove()
    assert pidfile.exists()
    files.leave_to_remover()
    assert os.read(read_fd, 1) == b""
    files.remove()
    files.close()
    assert pidfile.exists()
    os.close(read_fd)
