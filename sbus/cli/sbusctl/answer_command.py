"""The command of `sbusctl reply --exec`, whose output is an answer.

It has a process group of its own, which is killed when the command takes too long or prints too
much, and when this program is interrupted. When it has ended, nothing waits for processes that it
has left behind: they live on, and what they print later is no answer.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time

from sbus.client.link import PACKET_BYTES_MAX
from sbus.errors import SbusError

_CHUNK_BYTES = 64 * 1024


class CommandFailed(SbusError):
    """Why there is no answer."""


def output_of(command: str, key: bytes, payload: bytes, seconds: float) -> bytes:
    """What the command prints, which has to end within so many seconds. Raises CommandFailed."""
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryFile() as stdin:
        stdin.write(payload)
        stdin.seek(0)
        process = subprocess.Popen(
            command,
            shell=True,
            process_group=0,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=sys.stderr.fileno(),
            env={**os.environb, b"SBUS_KEY": key},
        )
    assert process.stdout is not None
    with process.stdout as stdout:
        try:
            output = _read_until_end(process.pid, stdout.fileno(), deadline)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the id is its own
            process.wait()
            if isinstance(error, TimeoutError):
                raise CommandFailed(f"the command took more than {seconds:g} s") from None
            raise
    status = process.wait()
    if status != 0:
        raise CommandFailed(f"the command failed with exit status {status}")
    return output


def _read_until_end(pid: int, stdout: int, deadline: float) -> bytes:
    """What there is to read when the process has ended. Raises TimeoutError, CommandFailed."""
    output = b""
    poll = select.poll()
    poll.register(stdout, select.POLLIN)
    pidfd = os.pidfd_open(pid)
    try:
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
    finally:
        os.close(pidfd)
