"""The fork server: a process that does nothing but fork workers and report their deaths.

Importing what a worker needs takes longer than starting it, and forking inside a running event loop
is unsound. So the front forks this process once, before its loop starts and before it opens its
lock; it has one thread and no loop, and every worker, at start and later, is a fork of it. So is a
closer, which has a number like a worker. When the front has ended, so do the workers and the
closer. It kills the workers that do not, and ends. If the front was killed, it also removes the
files that the front could not remove.

`ForkServer` is the front's handle on it.
"""

import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Never, Protocol

import msgspec

from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.closer_process import close_as_told
from sbus.broker.ipc.room import RETRY_SECONDS
from sbus.protocol.events import FrontDied, WorkerDelayed
from sbus.unix.bus_files import BusFiles
from sbus.unix.fd_passing import DescriptorsLost, receive_owning_fds, send_borrowing_fds
from sbus.unix.privileges import keep_capabilities
from sbus.unix.readiness import is_readable_within

_REQUEST = struct.Struct("=I")
_EVENT = struct.Struct("=Iqi")  # worker, pid, status
_FORKED = -1
"""In place of a status: this worker was forked."""
_PING = 2**32 - 1
"""In place of a worker's number: a ping, or the answer to it."""
CLOSER = 2**32 - 2
"""In place of a worker's number: a closer."""
_STOP = 2**32 - 3
"""In place of a worker's number: the front is about to end in good order."""
_FAILED = 1 << 8
"""As waitpid gives the exit status 1."""
_FAREWELL_SECONDS_MAX = 0.5
"""Time for the workers to end by themselves once the front has."""
_STOP_SECONDS_MAX = 2.0
"""Time to kill the workers that are left. The supervisor has ended them unless the front failed."""

WorkerMain = Callable[[int, socket.socket, bool], None]
"""What runs in a forked worker: its number, its end of the link to the front, and whether it is the
first of this number."""


class SupportsClose(Protocol):
    """A file or a socket."""

    def close(self) -> None: ...


class WorkerForked(msgspec.Struct, frozen=True):
    """A worker was forked; the receiver owns `pidfd`, -1 for one that is being killed again."""

    worker: int
    pid: int
    pidfd: int


class WorkerExited(msgspec.Struct, frozen=True):
    """A worker has ended; `status` as waitpid gives it."""

    worker: int
    pid: int
    status: int


class Pong(msgspec.Struct, frozen=True):
    """The answer to `ping`."""


class ForkServer:
    """The front's handle. Make it before the event loop starts."""

    def __init__(
        self,
        worker_main: WorkerMain,
        close: Sequence[SupportsClose],
        files: BusFiles,
        events: EventEmitter,
    ) -> None:
        """Fork the process, which closes its copies of `close`, and removes `files` if the front is
        killed."""
        self.sock, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        front_pid = os.getpid()
        front_pidfd = os.pidfd_open(front_pid)  # the server may run only after the front has died
        self.pid = os.fork()
        if self.pid == 0:

            def main() -> None:
                _ignore_signals()
                keep_capabilities()  # the front of root's bus may have some left
                _become("sbusd-forkserv", close=[self.sock, *close])
                server = (other, worker_main, files, events, front_pid, front_pidfd)
                _ForkServerProcess(*server).run()

            _run_and_exit(main)
        other.close()
        os.close(front_pidfd)
        self.sock.setblocking(False)

    def fork_worker(self, worker: int) -> socket.socket:
        """Ask for a worker; our end of its link. Raises BlockingIOError, OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._request(worker, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        return ours

    def fork_closer(self) -> socket.socket:
        """The same for a closer."""
        return self.fork_worker(CLOSER)

    def ping(self) -> None:
        """Ask for a `Pong`. Ask again only when that has come: unread pings pile up. Raises
        BlockingIOError."""
        self._request(_PING)

    def _request(self, number: int, *fds: int) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # `receive` reports the end
            send_borrowing_fds(self.sock, _REQUEST.pack(number), list(fds))

    def receive(self) -> WorkerForked | WorkerExited | Pong | None:
        """The next event; None when the fork server has ended. Raises BlockingIOError."""
        try:
            data, fds = receive_owning_fds(self.sock, _EVENT.size)
        except DescriptorsLost as lost:
            data, fds = lost.data, []
        if not data:
            return None
        worker, pid, status = _EVENT.unpack(data)
        if worker == _PING:
            return Pong()
        if status == _FORKED and not fds:
            with suppress(ProcessLookupError):  # it cannot be watched; its death is reported as any
                os.kill(pid, signal.SIGKILL)
            return WorkerForked(worker, pid, -1)
        if status == _FORKED:
            return WorkerForked(worker, pid, fds[0])
        return WorkerExited(worker, pid, status)

    def stop(self) -> None:
        """End the fork server and all workers that are left, and wait for that. A fork server that
        is stopped cannot end, and is killed."""
        with suppress(BlockingIOError):
            self._request(_STOP)
        pidfd = os.pidfd_open(self.pid)
        if not is_readable_within(pidfd, _STOP_SECONDS_MAX):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        os.waitpid(self.pid, 0)
        self.sock.close()


class _ForkServerProcess:
    def __init__(
        self,
        sock: socket.socket,
        worker_main: WorkerMain,
        files: BusFiles,
        events: EventEmitter,
        front_pid: int,
        front_pidfd: int,
    ) -> None:
        self._front_pid = front_pid
        self._front_pidfd = front_pidfd
        self._sock = sock
        self._worker_main = worker_main
        self._files = files
        self._events = events
        self._is_told_to_stop = False
        self._workers: dict[int, tuple[int, int]] = {}
        """Number and pid of each worker, by its pidfd."""
        self._numbers: set[int] = set()
        """Of all workers that there have been."""
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def run(self) -> None:
        """Serve until the front has ended; then kill the workers, and remove what it has left."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):
            os.dup2(null, fd)
        os.close(null)
        serves = True
        while serves:
            for fd, _ in self._poll.poll():
                if fd == self._sock.fileno():
                    serves = self._handle_request()
                else:
                    self._reap(fd)
        workers = {pidfd: pid for pidfd, (n, pid) in self._workers.items() if n != CLOSER}
        self._wait_for(workers)
        for pidfd in workers:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pid in workers.values():
            os.waitpid(pid, 0)
        # While the front lives, it has the sockets and the pidfile open.
        if not self._is_told_to_stop and is_readable_within(self._front_pidfd, _STOP_SECONDS_MAX):
            left = self._files.remove_left()
            self._events.emit(FrontDied(front_pid=self._front_pid, left=left))

    def _wait_for(self, pidfds: Iterable[int]) -> None:
        """Let these workers tell their clients that the bus has failed, and end."""
        deadline = time.monotonic() + _FAREWELL_SECONDS_MAX
        for pidfd in pidfds:
            left_seconds = max(0.0, deadline - time.monotonic())
            is_readable_within(pidfd, left_seconds)

    def _handle_request(self) -> bool:
        """Handle one request; whether the front is still there."""
        data, fds = receive_owning_fds(self._sock, _REQUEST.size)
        if not data:
            return False
        (number,) = _REQUEST.unpack(data)
        if number == _STOP:
            self._is_told_to_stop = True
            return False
        if number == _PING:
            self._send(_PING, 0, 0)
            return True
        try:
            pid, pidfd = self._fork_worker(number, fds[0])
        except OSError as error:
            if number != CLOSER:
                self._events.emit(WorkerDelayed(worker=number, why=f"no fork: {error.strerror}"))
            self._send(number, 0, _FAILED)
        else:
            self._workers[pidfd] = (number, pid)
            self._poll.register(pidfd, select.POLLIN)
            self._send(number, pid, _FORKED, pidfd)
        return True

    def _fork_worker(self, number: int, link_fd: int) -> tuple[int, int]:
        """Fork a worker; its pid and a pidfd. Raises OSError, and then there is none."""
        own_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(link_fd)
            raise
        if pid == 0:

            def main() -> None:
                if number == CLOSER:
                    _become("sbusd-closer", close=[])
                    close_as_told(link_fd, [self._front_pid, own_pid])
                    return
                _become(f"sbusd-worker-{number}", close=[self._sock])
                for pidfd in (self._front_pidfd, *self._workers):
                    os.close(pidfd)
                is_first = number not in self._numbers
                self._worker_main(number, socket.socket(fileno=link_fd), is_first)

            _run_and_exit(main)
        self._numbers.add(number)
        os.close(link_fd)
        try:
            return pid, os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def _reap(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        number, pid = self._workers.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        self._send(number, pid, status)

    def _send(self, worker: int, pid: int, status: int, *fds: int) -> None:
        """Send the front an event. It may just have ended; the next request shows that."""
        with suppress(BrokenPipeError, ConnectionResetError):
            while True:
                try:
                    send_borrowing_fds(self._sock, _EVENT.pack(worker, pid, status), list(fds))
                    return
                except BlockingIOError:
                    fds = ()  # the front ends a worker that it cannot watch
                    time.sleep(RETRY_SECONDS)


def _run_and_exit(main: Callable[[], None]) -> Never:
    """Run `main` in a forked child, which ends with it and never returns to its parent's code."""
    status = 1
    try:
        main()
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _become(name: str, close: Sequence[SupportsClose]) -> None:
    """Give a forked child its own name, and close what only its parent uses."""
    # A text file would cost every worker some more pages of its own.
    with suppress(OSError):
        # Not /proc/self/comm, which is root's if this process may not be inspected.
        comm = os.open("/proc/thread-self/comm", os.O_WRONLY)
        try:
            os.write(comm, name.encode())
        finally:
            os.close(comm)
    for file in close:
        file.close()


def _ignore_signals() -> None:
    """Let the front alone decide when this process, and every worker that it forks, ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
