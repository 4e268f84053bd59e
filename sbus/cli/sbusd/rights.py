"""Giving up root's rights, and the remover, which keeps the right to remove the bus's files.

A bus that root starts makes its sockets and its pidfile as root, and then runs as another user, who
cannot remove them. So a process stays behind, the *remover*. It waits until no process of the bus
is left, removes the files that are still the bus's, and ends. It reads nothing but the end of a
pipe, and has no capability but the one for directories of other users.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from sbus.bus_options import SERVICE_USER
from sbus.cli.terminal.error_output import report_error
from sbus.errors import ConfigurationError
from sbus.unix.bus_files import BusFiles
from sbus.unix.owned_path import OwnedPath
from sbus.unix.path_lock import path_lock
from sbus.unix.privileges import CAP_DAC_OVERRIDE, confine
from sbus.unix.standard_streams import ERRORS, release_input_and_output
from sbus.unix.users import Identity

DUMPABLE_VARIABLE = "SBUS_DUMPABLE"
"""This environment variable is 1 if debuggers and core dumps may see the messages of a bus."""


def new_identity(run_as: Identity | None) -> Identity | None:
    """What the bus is going to run as, if that is not what this process runs as; `run_as` is what
    its options name. Raises ConfigurationError."""
    own_uid = os.geteuid()
    if own_uid == 0 and run_as is None:
        run_as = _service_identity()
    if run_as is None or run_as.uid == own_uid:
        return None
    if own_uid != 0:
        raise ConfigurationError("only root can run the bus as another user (--run-as)")
    return run_as


def _service_identity() -> Identity | None:
    try:
        return Identity.of_user(SERVICE_USER)
    except ConfigurationError:
        report_error(
            f"warning: the bus runs as root, because there is no user {SERVICE_USER!r}; make that "
            "user, or name another with --run-as"
        )
        return None


@contextmanager
def reduced_rights(identity: Identity | None, files: BusFiles) -> Iterator[None]:
    """Run as this user, if it is not None, and with no right that a bus does not need, for good. At
    the end of the block the remover removes `files`, if this process could not. Raises
    ConfigurationError."""
    with ExitStack() as stack:
        if identity is not None and files.is_ours and files.paths:
            stack.callback(_Remover(files).finish)
        # Root's own bus removes its files itself, perhaps from another user's directory.
        kept = {CAP_DAC_OVERRIDE} if identity is None else set()
        try:
            confine(identity, kept, is_dumpable=os.environ.get(DUMPABLE_VARIABLE) == "1")
        except OSError as error:
            who = "with fewer rights" if identity is None else f"as user {identity.uid}"
            raise ConfigurationError(f"cannot run {who} (--run-as): {error.strerror}") from error
        if not os.access(os.__file__, os.R_OK):
            report_error(
                f"warning: user {os.geteuid()} cannot read Python's own modules ({os.__file__}); "
                "what the bus has not imported yet may end it"
            )
        yield


class _Remover:
    """The bus's handle on the process that removes `files`."""

    def __init__(self, files: BusFiles) -> None:
        """Start it. All processes of the bus inherit the pipe whose end it waits for."""
        self._files = files
        read_fd, files.remover_fd = os.pipe()
        try:
            self._pid = os.fork()
        except OSError as error:
            raise ConfigurationError(f"cannot start the remover: {error.strerror}") from error
        if self._pid == 0:
            status = 1
            try:
                _remove_at_end(read_fd, files.paths)
                status = 0
            finally:
                os._exit(status)
        os.close(read_fd)

    def finish(self) -> None:
        """Have it remove the files, and wait for that, unless another bus has them. All other
        processes must have ended."""
        if self._files.is_ours:
            self._files.leave_to_remover()
            os.waitpid(self._pid, 0)


def _remove_at_end(read_fd: int, files: Sequence[OwnedPath]) -> None:
    """The life of the remover."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    release_input_and_output()
    pipe = os.dup2(read_fd, ERRORS + 1)
    os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))
    for file in files:
        # While it is open, no newer file can get its inode.
        with suppress(FileNotFoundError):
            os.open(file.path, os.O_PATH | os.O_NOFOLLOW)
    with open("/proc/thread-self/comm", "wb", buffering=0) as comm:
        comm.write(b"sbusd-remover")
    confine(None, {CAP_DAC_OVERRIDE})
    while os.read(pipe, 1):
        pass
    for file in files:
        try:
            if file.is_ours():
                with path_lock(file.path):  # another bus may be replacing it by now
                    file.remove()
        except OSError as error:
            report_error(f"cannot remove {file.path}: {error.strerror}")
