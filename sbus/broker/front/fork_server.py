"""The template: a process that does nothing but fork workers and tell when they die.

Importing what a worker needs takes longer than starting it, and forking inside a running event loop
is unsound. So the front forks this process once, before its loop starts and before it opens its
lock; it has one thread and no loop, and every worker, at start and later, is a fork of it. When the
front is gone it kills the workers and ends.

`ForkServer` is the front's handle on it. Neither side knows what a worker does.
"""

import gc
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

import msgspec

from sbus.broker.events.emitter import EventEmitter
from sbus.protocol.events import WorkerDelayed
from sbus.unix.fd_passing import DescriptorsLost, receive_owning_fds, send_borrowing_fds

_REQUEST = struct.Struct("=I")
_EVENT = struct.Struct("=Iqi")  # worker, pid, status: -1 for a birth
_BORN = -1
_ALIVE = 2**32 - 1
"""In place of a worker's number: asks the template whether it lives, and is its answer."""
_FAILED = 1 << 8
"""As waitpid gives the exit status 1."""

WorkerMain = Callable[[int, socket.socket], None]
"""What runs in a forked worker: its number, and its end of the link to the front."""


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


class Alive(msgspec.Struct, frozen=True):
    """The template's answer to `ask`."""


class ForkServer:
    """The front's handle. Fork it before the event loop starts."""

    def __init__(
        self, worker_main: WorkerMain, close: list[socket.socket], events: EventEmitter
    ) -> None:
        """Fork the template, which closes its copies of `close`."""
        self.sock, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            _run_and_exit(lambda: _serve(other, worker_main, [self.sock, *close], events))
        other.close()
        self.sock.setblocking(False)

    def fork_worker(self, worker: int, link_socket: socket.socket) -> None:
        """Ask for a worker with this end of its link, which is taken."""
        send_borrowing_fds(self.sock, _REQUEST.pack(worker), [link_socket.fileno()])
        link_socket.close()

    def ask(self) -> None:
        """Ask for an `Alive`. Ask again only when that has come: unread questions pile up."""
        with suppress(BrokenPipeError, ConnectionResetError):  # `receive` tells of that
            send_borrowing_fds(self.sock, _REQUEST.pack(_ALIVE), [])

    def receive(self) -> WorkerForked | WorkerExited | Alive | None:
        """The next event; None when the template is gone. Raises BlockingIOError."""
        try:
            data, fds = receive_owning_fds(self.sock, _EVENT.size)
        except DescriptorsLost as lost:
            worker, pid, _ = _EVENT.unpack(lost.data)
            with suppress(ProcessLookupError):  # nobody could watch it: its death is told as any
                os.kill(pid, signal.SIGKILL)
            return WorkerForked(worker, pid, -1)
        if not data:
            return None
        worker, pid, status = _EVENT.unpack(data)
        if worker == _ALIVE:
            return Alive()
        return (
            WorkerForked(worker, pid, fds[0])
            if status == _BORN
            else WorkerExited(worker, pid, status)
        )

    def stop(self) -> None:
        """End the template and whatever workers are left, and wait for that."""
        self.sock.close()
        os.waitpid(self.pid, 0)


def _run_and_exit(main: Callable[[], None]) -> None:
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


def _become(name: str) -> None:
    """Give this process a name of its own, and let the front alone decide when it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(name)


def _serve(
    sock: socket.socket, worker_main: WorkerMain, close: list[socket.socket], events: EventEmitter
) -> None:
    _become("sbusd-template")
    for other in close:
        other.close()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    gc.collect()
    gc.freeze()
    workers: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd != sock.fileno():
                poll.unregister(fd)
                number, pid = workers.pop(fd)
                _, status = os.waitpid(pid, 0)
                os.close(fd)
                _tell(sock, _EVENT.pack(number, pid, status), [])
                continue
            data, fds = receive_owning_fds(sock, _REQUEST.size)
            if not data:
                _end(workers)
                return
            (number,) = _REQUEST.unpack(data)
            if number == _ALIVE:
                _tell(sock, _EVENT.pack(_ALIVE, 0, 0), [])
                continue
            try:
                pid, pidfd = _fork_worker(number, fds[0], worker_main, [sock.fileno(), *workers])
            except OSError as error:
                events.emit(WorkerDelayed(worker=number, why=f"no fork: {error.strerror}"))
                _tell(sock, _EVENT.pack(number, 0, _FAILED), [])
                continue
            workers[pidfd] = (number, pid)
            poll.register(pidfd, select.POLLIN)
            _tell(sock, _EVENT.pack(number, pid, _BORN), [pidfd])


def _fork_worker(
    number: int, link_fd: int, worker_main: WorkerMain, close: list[int]
) -> tuple[int, int]:
    """Fork a worker; its pid and a pidfd. Raises OSError, and then there is none."""
    try:
        pid = os.fork()
    except OSError:
        os.close(link_fd)
        raise
    if pid:
        os.close(link_fd)
        try:
            return pid, os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def main() -> None:
        _become(f"sbusd-worker-{number}")
        for fd in close:
            os.close(fd)
        worker_main(number, socket.socket(fileno=link_fd))

    _run_and_exit(main)
    raise AssertionError("a forked worker went on")


def _tell(sock: socket.socket, event: bytes, fds: list[int]) -> None:
    """Tell the front, which may just have ended: then the next read says so."""
    with suppress(BrokenPipeError, ConnectionResetError):
        send_borrowing_fds(sock, event, fds)


def _end(workers: dict[int, tuple[int, int]]) -> None:
    for pidfd in workers:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    for _, pid in workers.values():
        os.waitpid(pid, 0)
