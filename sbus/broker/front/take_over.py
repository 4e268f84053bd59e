"""Take-over: this bus takes the place of another one, with all of its clients.

See `hand_over` for the other side. The workers of this bus are frozen from their start. They first
prepare for the clients that the old bus describes while it serves them; then they restore all of
them, and serve when the old bus has given them up.
"""

import os
import socket
from contextlib import suppress

import msgspec
import trio

from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.bus_recorder import BusRecorder
from sbus.broker.front.client_restorer import ClientRestorer
from sbus.broker.front.shutdown import Shutdown
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.worker_rounds import WorkerRounds
from sbus.broker.ipc import upgrade_link as link_protocol
from sbus.broker.ipc.bus_record import BusRecord, take_memfd
from sbus.broker.ipc.upgrade_link import UpgradeFailed, send_when_possible
from sbus.broker.ipc.worker_protocol import (
    Freeze,
    MapRecords,
    ReportPrepared,
    RestoreClients,
    Thaw,
)
from sbus.unix.fd_passing import DescriptorsLost
from sbus.unix.socket_cookie import socket_cookie

_END_SECONDS_MAX = 1.0
"""Between the end of a link and that of its process."""


class TakeOver:
    """Of one bus."""

    def __init__(
        self,
        supervisor: Supervisor,
        rounds: WorkerRounds,
        restorer: ClientRestorer,
        acceptor: Acceptor,
        recorder: BusRecorder,
        shutdown: Shutdown,
    ) -> None:
        self._supervisor = supervisor
        self._rounds = rounds
        self._restorer = restorer
        self._acceptor = acceptor
        self._recorder = recorder
        self._shutdown = shutdown
        self._sockets: dict[int, socket.socket] = {}
        """Those that no client has yet, by their cookies."""
        self._waiting: list[socket.socket] = []
        self._files = 0
        self._is_adopted = False

    async def run(self, link: socket.socket, front_pidfd: int) -> None:
        """Take the place of the bus with this front at the other end of the link; when this
        returns, the clients are served. Takes the pidfd. Raises SbusError."""
        await self._rounds.begin()
        try:
            with self._shutdown.preparation_scope as scope:
                await self._prepare(link, front_pidfd)
            if scope.cancelled_caught:
                raise UpgradeFailed("the new program was told to stop")
            # The old bus decides from here on. If it commits, a stop ends this one like any other.
            while await self._take(link, front_pidfd):
                pass
        except OSError as error:
            raise UpgradeFailed(f"cannot take over: {error.strerror}") from error
        except (DescriptorsLost, msgspec.DecodeError) as error:
            raise UpgradeFailed(f"cannot take over: {error}") from error
        finally:
            os.close(front_pidfd)
        for worker in self._supervisor.running_workers():
            self._supervisor.send(worker, Thaw())
        for sock in self._waiting:
            self._acceptor.take_in(sock)
        for sock in self._sockets.values():
            sock.close()  # their clients left before anything was known of them
        self._restorer.end()

    async def _prepare(self, link: socket.socket, front_pidfd: int) -> None:
        """Up to `Adopted`. If this is cancelled, that was not sent."""
        await self._rounds.run(Freeze)
        await send_when_possible(link, link_protocol.Ready())
        while not self._is_adopted:
            await self._take(link, front_pidfd)

    async def _take(self, link: socket.socket, front_pidfd: int) -> bool:
        """Take the next message; False when the clients are to be served."""
        message, fds = await _receive(link)
        match message:
            case link_protocol.Sockets():
                for fd in fds:
                    sock = socket.socket(fileno=fd)
                    self._sockets[socket_cookie(sock)] = sock
            case link_protocol.RecordsOfClients():
                self._add_records(fds[0])
            case link_protocol.RecordOfBus():
                await self._take_bus(link, take_memfd(fds[0]), is_final=message.is_final)
            case link_protocol.Abort():
                raise UpgradeFailed(f"the old bus called it off: {message.why}")
            case link_protocol.Commit() if self._is_adopted:
                return False
            case None if self._is_adopted and await _ends(front_pidfd):
                return False
            case None:
                raise UpgradeFailed("the old bus has ended the take-over")
            case _:
                raise UpgradeFailed(f"the old bus says {message} out of turn")
        return True

    def _add_records(self, fd: int) -> None:
        try:
            self._restorer.add_records(self._files, fd)
            self._files += 1
            for worker in self._supervisor.running_workers():
                self._supervisor.send(worker, MapRecords(), fd)
        finally:
            os.close(fd)

    async def _take_bus(self, link: socket.socket, record: BusRecord, *, is_final: bool) -> None:
        self._restorer.open_accounts(record.users)
        await self._restorer.prepare(record, self._sockets, is_final=is_final)
        if not is_final:
            await self._rounds.run(ReportPrepared)
            # Each has journalled patterns, which the others are to read.
            await self._rounds.run(ReportPrepared)
            await send_when_possible(link, link_protocol.Prepared())
            return
        self._recorder.restore(record)
        self._waiting = [self._sockets.pop(cookie) for cookie in record.waiting_cookies]
        await self._rounds.run_each(
            lambda number, worker: (
                RestoreClients(number, self._counters_for(worker, record)),
                None,
            )
        )
        self._restorer.forget_missing(record)
        self._supervisor.delay_replacing()
        self._is_adopted = True
        with suppress(BrokenPipeError, ConnectionResetError):  # reading shows why the old bus ended
            await send_when_possible(link, link_protocol.Adopted())

    def _counters_for(self, worker: int, record: BusRecord) -> dict[str, int]:
        """What this worker goes on with: the sum of what some workers of the old bus counted."""
        sums: dict[str, int] = {}
        for counters in record.counters[worker :: len(self._supervisor.workers)]:
            for name, count in counters.items():
                sums[name] = sums.get(name, 0) + count
        return sums


async def _receive(link: socket.socket) -> tuple[link_protocol.FromOld | None, list[int]]:
    """The next message of the old bus; None at its end."""
    while True:
        try:
            return link_protocol.receive_from_old(link)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(link)


async def _ends(pidfd: int) -> bool:
    """Whether this process has ended, or does so now."""
    with trio.move_on_after(_END_SECONDS_MAX):
        await trio.lowlevel.wait_readable(pidfd)
        return True
    return False
