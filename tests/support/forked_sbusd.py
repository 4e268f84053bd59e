"""Buses that are forked from a process which has imported `sbusd`, for tests that start many.

Such a start takes a fifth of the CPU time. The bus has another parent and, in `/proc`, another
command line; and its sets of strings have the order of those of other buses.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from io import FileIO
from typing import BinaryIO

from sbus.compiled import VARIABLE


class ForkedSbusd:
    """Such a process, with what tests use of `subprocess.Popen`."""

    returncode: int | None = None

    def __init__(
        self,
        arguments: Sequence[str],
        stderr: BinaryIO,
        environment: dict[str, str],
        passed: Sequence[int],
        program: Sequence[str],
        template: str = "sbusd_template",
    ) -> None:
        """It is passed these descriptors as by a service manager, from 3 on. For an upgrade it has
        Python run this program with the same arguments."""
        self._template = _template_of(os.getpid(), environment.get(VARIABLE), template)
        asked = {
            "program": program,
            "arguments": arguments,
            "environment": environment,
            "directory": os.getcwd(),
        }
        read_fd, write_fd = os.pipe()
        self.stdout = FileIO(read_fd)
        try:
            self.pid = self._template.ask(asked, write_fd, stderr.fileno(), *passed)
        finally:
            os.close(write_fd)
        # Until the template has been asked for the exit status, this is the process's id.
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        with self._template.lock:
            if self.returncode is None and select.select([self._pidfd], [], [], 0)[0]:
                self.returncode = self._template.ask(self.pid)
                os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None and not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("sbusd", timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Template:
    """A running `tests.support.sbusd_template`, or `sbusctl_template`."""

    def __init__(self, name: str) -> None:
        self.lock = threading.RLock()
        self._link, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = f"tests.support.{name}"
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", program, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=[its.fileno()],
            )
        atexit.register(self._end)

    def ask(self, question: object, *descriptors: int) -> int:
        with self.lock:
            socket.send_fds(self._link, [json.dumps(question).encode()], descriptors)
            return int(self._link.recv(16))

    def _end(self) -> None:
        self._link.close()
        self._process.wait()


@cache
def _template_of(_of_process: int, _step: str | None, name: str) -> _Template:
    """The one of this process, which does the ordinary step so."""
    return _Template(name)
