"""Writing to standard error does not wait, and shared open files keep their flags."""

import fcntl
import os
import pty
import socket
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from sbus.cli.terminal.error_output import report_error
from sbus.unix.standard_streams import reopen_errors, write_at_once
from tests.support.children import child_that
from tests.support.users import UNPRIVILEGED, needs_root

REOPEN = """
import os
from sbus.unix.standard_streams import reopen_errors
reopen_errors()
print(os.get_blocking(2))
os.write(2, b"to the reader")
"""


def terminal() -> tuple[int, int]:
    """Both ends of a terminal, which does not change a line."""
    reader, writer = pty.openpty()
    attributes = termios.tcgetattr(writer)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(writer, termios.TCSANOW, attributes)
    return reader, writer


def connection() -> tuple[int, int]:
    reader, writer = socket.socketpair()
    return reader.detach(), writer.detach()


@pytest.mark.parametrize(
    ("make", "blocks"), [(os.pipe, False), (terminal, False), (connection, True)]
)
def test_only_an_open_file_of_the_process_itself_does_not_block(
    make: Callable[[], tuple[int, int]], blocks: bool
) -> None:
    reader, writer = make()
    done = subprocess.run(
        [sys.executable, "-c", REOPEN], stdout=subprocess.PIPE, stderr=writer, check=True
    )
    assert done.stdout == f"{blocks}\n".encode()
    assert os.get_blocking(writer)
    assert os.read(reader, 100) == b"to the reader"
    os.close(reader)
    os.close(writer)


def test_a_file_is_reopened_at_no_other_place(tmp_path: Path) -> None:
    path = tmp_path / "errors"
    with path.open("wb") as errors:
        os.write(errors.fileno(), b"before, ")
        subprocess.run([sys.executable, "-c", REOPEN], stdout=-1, stderr=errors, check=True)
        assert write_at_once(errors.fileno(), b", after")
    assert path.read_bytes() == b"before, to the reader, after"


@pytest.mark.parametrize("make", [os.pipe, terminal, connection])
def test_a_file_that_blocks_is_written_to_while_it_has_room(
    make: Callable[[], tuple[int, int]],
) -> None:
    reader, writer = make()
    assert write_at_once(writer, b"a line")
    assert os.read(reader, 100) == b"a line"
    assert os.get_blocking(writer)
    os.close(reader)
    os.close(writer)


def test_a_pipe_takes_all_of_a_line_or_nothing() -> None:
    """Even where it has room for a part of it."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4_096)
    os.write(writer, bytes(4_000))
    with pytest.raises(BlockingIOError):
        write_at_once(writer, bytes(200))
    os.set_blocking(writer, True)
    assert not write_at_once(writer, bytes(200))
    assert len(os.read(reader, 10_000)) == 4_000
    os.close(reader)
    os.close(writer)


@needs_root
def test_a_pipe_of_another_user_is_written_to_without_being_opened() -> None:
    reader, writer = os.pipe()

    def write_as_stranger() -> None:
        os.dup2(writer, 2)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        reopen_errors()
        assert os.get_blocking(2)
        while write_at_once(2, b"a line"):
            pass

    with child_that(write_as_stranger):
        assert set(os.read(reader, 1 << 20).split(b"a line")) == {b""}
    os.close(reader)
    os.close(writer)


def test_an_error_without_room_is_printed_before_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4_096)
    os.write(writer, bytes(4_096))
    with os.fdopen(writer, "w", buffering=1) as errors:
        monkeypatch.setattr(sys, "stderr", errors)
        report_error("first")
        os.read(reader, 4_096)
        report_error("second")
        assert os.read(reader, 100) == b"sbusd: first\nsbusd: second\n"
    os.close(reader)
