"""The standard streams: file descriptors 0, 1 and 2, which must never belong to another file.

A stream is released by putting /dev/null in its place: a number that is merely closed goes to the
next file that is opened, and then a client might receive what is printed.

Standard error is written to without waiting. It is often an open file of other processes too, such
as the user's shell, and so are its flags: this process sets O_NONBLOCK only on one of its own.
"""

import os
import select
import socket
from contextlib import suppress
from stat import S_ISCHR, S_ISFIFO, S_ISREG, S_ISSOCK

INPUT, OUTPUT, ERRORS = 0, 1, 2


def hold_standard_numbers() -> None:
    """Open /dev/null for each standard stream that this process did not inherit."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= ERRORS:
        os.set_inheritable(number, True)
    os.close(number)


def release_input_and_output() -> None:
    """Release standard input and output; the parent waits for the end of the output."""
    release(INPUT, OUTPUT)


def release_errors_of_terminal() -> None:
    """Release standard error if it is a terminal, which will not exist for long."""
    if os.isatty(ERRORS):
        release(ERRORS)


def release(*numbers: int) -> None:
    """Put /dev/null in the place of these streams."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(null, number)
    os.close(null)


def reopen_errors() -> None:
    """Open standard error anew, so that writing to it does not block, if it is a pipe or a device.
    That is left as it is where this user may not open it: `write_at_once` has a way to write."""
    mode = os.fstat(ERRORS).st_mode
    if S_ISFIFO(mode) or S_ISCHR(mode):
        with suppress(OSError):
            own = os.open(f"/proc/self/fd/{ERRORS}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            os.dup2(own, ERRORS)
            os.close(own)


def write_at_once(fd: int, line: bytes) -> bool:
    """Write at most PIPE_BUF bytes without waiting, whichever flags the open file has; whether
    there was room for all of them. A terminal or a stream may have taken the beginning. Only a
    terminal that blocks is waited for, if it has room for a part. Raises OSError."""
    mode = os.fstat(fd).st_mode
    if S_ISSOCK(mode):
        written = _send(fd, line)
    elif S_ISREG(mode) or not os.get_blocking(fd):
        written = os.write(fd, line)
    else:
        written = _splice(fd, line)
    return written == len(line)


def _send(fd: int, data: bytes) -> int:
    sock = socket.socket(fileno=fd)
    try:
        return sock.send(data, socket.MSG_DONTWAIT)
    finally:
        sock.detach()


def _splice(fd: int, data: bytes) -> int:
    """Write to a pipe by moving the bytes from another one, which alone has a flag for not waiting.
    A terminal has none, and is asked first whether it has room."""
    room = select.poll()
    room.register(fd, select.POLLOUT)
    if not any(ready & select.POLLOUT for _, ready in room.poll(0)):
        return 0
    read_fd, write_fd = os.pipe()
    try:
        os.write(write_fd, data)
        return os.splice(read_fd, fd, len(data), flags=os.SPLICE_F_NONBLOCK)
    finally:
        os.close(read_fd)
        os.close(write_fd)
