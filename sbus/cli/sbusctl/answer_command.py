"""The command of `sbusctl reply --exec`, whose output is an answer.

The command has a process group of its own, which is killed when the command takes too long or
prints too much, and when this program is interrupted or ended. When the command has ended, the
processes that it has left behind live on, and their later output is not part of the answer.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sbus.client.link import PACKET_BYTES_MAX
from sbus.errors import SbusError

_CHUNK_BYTES = 64 * 1024
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CommandFailed(SbusError):
    """Why there is no answer."""


def output_of(command: str, key: bytes, payload: bytes, seconds: float) -> bytes:
    """What the command prints, which has to end within so many seconds. Raises CommandFailed."""
    deadline = time.monotonic() + seconds
    process: subprocess.Popen[bytes] | None = None
    try:
        with _interrupted_afterwards():
            process = _start(command, key, payload)
        output = _read_until_end(process, deadline)
    except BaseException as error:
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the id is its own
            process.wait()
        if isinstance(error, TimeoutError):
            raise CommandFailed(f"the command took more than {seconds:g} s") from None
        raise
    status = process.wait()
    if status != 0:
        raise CommandFailed(f"the command failed with exit status {status}")
    return output


def _start(command: str, key: bytes, payload: bytes) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as stdin:
        stdin.write(payload)
        stdin.seek(0)
        return subprocess.Popen(
            command,
            shell=True,
            process_group=0,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=sys.stderr.fileno(),
            env={**os.environb, b"SBUS_KEY": key},
        )


@contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    """A signal that raises an exception does so at the end of the block, as a command that is half
    started is lost sight of."""
    came: list[tuple[int, FrameType | None]] = []
    found = ((it, signal.getsignal(it)) for it in _ENDING)
    # Otherwise the command would not ignore a signal that this program does.
    handlers = {signum: handler for signum, handler in found if callable(handler)}
    for signum in handlers:
        signal.signal(signum, lambda *signal_and_frame: came.append(signal_and_frame))
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    if came:
        first, frame = came[0]
        handlers[signal.Signals(first)](first, frame)


def _read_until_end(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """What there is to read when the process has ended. Raises TimeoutError, CommandFailed."""
    assert process.stdout is not None
    output = b""
    poll = select.poll()
    with process.stdout, open(os.pidfd_open(process.pid), "rb", buffering=0) as end:
        stdout, pidfd = process.stdout.fileno(), end.fileno()
        poll.register(stdout, select.POLLIN)
        poll.register(pidfd, select.POLLIN)
        while True:
            left_seconds = deadline - time.monotonic()
            ready = [fd for fd, _ in poll.poll(max(0.0, left_seconds) * 1000)]
            if stdout in ready and (chunk := os.read(stdout, _CHUNK_BYTES)):
                output += chunk
            elif stdout in ready:
                poll.unregister(stdout)
            elif pidfd in ready:
                return output
            if len(output) > PACKET_BYTES_MAX:
                raise CommandFailed(f"the answer is too long: more than {PACKET_BYTES_MAX} bytes")
            if left_seconds <= 0:
                raise TimeoutError
