"""Being a daemon: signals until the bus handles them, and the background.

The process that was started, the launcher, waits until the daemon, its grandchild in a session of
its own, reports through a pipe that it is ready or what went wrong. So the exit status tells
whether there is a bus. A launcher that is killed meanwhile leaves a pipe that nobody reads, which
the daemon takes for a request to stop.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from sbus.cli.terminal.error_output import report_error
from sbus.errors import ConfigurationError
from sbus.unix.standard_streams import release_errors_of_terminal, release_input_and_output

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_READY = b"."
_REPORT_BYTES_MAX = 4_000
"""A report is one write(2) of less than PIPE_BUF, so that one read(2) gets all of it."""


class StopRequest:
    """Takes over the signals that end a bus; `is_requested` once one of them has come.

    It is in use from the time that something exists which has to be removed, until the bus has its
    own handlers. A signal only sets a flag, so that it interrupts nothing. SIGHUP becomes SIGTERM
    for good, because the bus handles only the others.
    """

    def __init__(self) -> None:
        self.is_requested = False
        signal.signal(signal.SIGTERM, self.request)
        signal.signal(signal.SIGINT, self.request)
        signal.signal(signal.SIGHUP, self._terminate)

    def request(self, _signum: int = 0, _frame: FrameType | None = None) -> None:
        self.is_requested = True

    def pass_on(self) -> None:
        """Send SIGTERM, which the bus handles by now, if a stop was requested before."""
        if self.is_requested:
            os.kill(os.getpid(), signal.SIGTERM)

    def ignore_further(self) -> None:
        """Keep signals from interrupting the end."""
        for signum in _ENDING:
            signal.signal(signum, signal.SIG_IGN)

    def _terminate(self, _signum: int, _frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


class Launcher:
    """The process that waits for the daemon to be ready, as the daemon sees it."""

    def __init__(self, write_fd: int) -> None:
        self._write_fd: int | None = write_fd

    def report_ready(self) -> bool:
        """Let the launcher exit with status 0; False if it has gone."""
        return self._report(_READY)

    def report_failure(self, text: str) -> bool:
        """Let the launcher print this error and exit with status 1; False if it has gone."""
        return self._report(text.encode(errors="backslashreplace")[:_REPORT_BYTES_MAX])

    def _report(self, report: bytes) -> bool:
        if self._write_fd is None:
            return False
        try:
            os.write(self._write_fd, report)
        except BrokenPipeError:
            return False
        finally:
            os.close(self._write_fd)
            self._write_fd = None
        return True


def go_to_background(stop: StopRequest) -> Launcher:
    """Return in a new process, the daemon; this one waits for it and exits. The daemon ignores
    SIGHUP."""
    read_fd, write_fd = os.pipe()
    child = _fork()
    if child:
        os.close(write_fd)
        _wait_as_launcher(child, read_fd, stop)
    os.setsid()
    if _fork():
        os._exit(0)
    os.close(read_fd)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return Launcher(write_fd)


def leave_surroundings() -> None:
    """Keep no terminal, no input, no output, and no directory but `/`."""
    os.chdir("/")
    release_input_and_output()
    release_errors_of_terminal()


def _fork() -> int:
    try:
        return os.fork()
    except OSError as error:
        raise ConfigurationError(f"cannot go to the background: {error.strerror}") from error


def _wait_as_launcher(child: int, read_fd: int, stop: StopRequest) -> NoReturn:
    """Exit as the daemon reports. Nothing is removed here: everything belongs to the daemon."""
    for signum in _ENDING:
        signal.signal(signum, signal.SIG_DFL)
    # If the request came before the fork, the daemon has it too; if it came just after, the daemon
    # finds its launcher gone.
    if stop.is_requested:
        os._exit(1)
    os.waitpid(child, 0)
    report = os.read(read_fd, _REPORT_BYTES_MAX)
    if report == _READY:
        os._exit(0)
    report_error(report.decode(errors="replace") if report else "the bus ended before it was ready")
    sys.stderr.flush()
    os._exit(1)
