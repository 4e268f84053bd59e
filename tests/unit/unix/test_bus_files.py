"""The files of a bus are removed by the last bus that has them, and by no other."""

import os
import socket
from pathlib import Path

import pytest

from sbus.unix.bus_files import BusFiles
from sbus.unix.file_lock import lock_file
from sbus.unix.owned_path import OwnedPath
from tests.support.file_sizes import file_size_limit


@pytest.fixture
def pidfile(tmp_path: Path) -> Path:
    path = tmp_path / "pid"
    path.write_text("1234567\n")
    return path


def files_of(path: Path, **options: bool) -> BusFiles:
    return BusFiles([OwnedPath.claim(str(path))], os.open(path, os.O_WRONLY), **options)


def test_a_pidfile_that_cannot_be_written_is_empty(pidfile: Path) -> None:
    files = files_of(pidfile, is_ours=False)
    with file_size_limit(0):
        assert files.take_over() == "File too large"
    assert pidfile.read_text() == "", "it must not have the id of another process"
    files.remove()
    files.close()
    assert not pidfile.exists()


def test_files_are_taken_back_from_a_bus_that_failed(pidfile: Path) -> None:
    files = files_of(pidfile)
    files.hand_over()
    files.take_back()
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


# -- what a killed front leaves --------------------------------------------------------------------


def bound_at(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(str(path))
    return sock


def test_what_nobody_uses_any_more_is_removed(pidfile: Path) -> None:
    address = pidfile.with_name("bus")
    bound_at(address).close()
    gone = OwnedPath(f"{address}.gone", 1, 2)
    files = BusFiles([OwnedPath.claim(str(address)), gone, OwnedPath.claim(str(pidfile))])
    assert files.remove_left() == []
    assert os.listdir(pidfile.parent) == []


def test_what_another_bus_has_taken_over_stays(pidfile: Path) -> None:
    address = pidfile.with_name("bus")
    with bound_at(address), pidfile.open("wb") as locked:
        lock_file(locked.fileno())
        files = BusFiles([OwnedPath.claim(str(address)), OwnedPath.claim(str(pidfile))])
        assert files.remove_left() == []
    assert sorted(os.listdir(pidfile.parent)) == ["bus", "pid"]


def test_what_the_remover_removes_stays(pidfile: Path) -> None:
    read_fd, write_fd = os.pipe()
    files = BusFiles([OwnedPath.claim(str(pidfile))], None, write_fd)
    assert files.remove_left() == []
    assert pidfile.exists()
    files.close()
    os.close(read_fd)


def test_what_cannot_be_removed_is_told(pidfile: Path) -> None:
    """The name of its lock is too long."""
    address = pidfile.with_name("x" * 255)
    address.touch()
    files = BusFiles([OwnedPath.claim(str(address)), OwnedPath.claim(str(pidfile))])
    assert files.remove_left() == [f"{address} (File name too long)"]
    assert os.listdir(pidfile.parent) == [address.name]
