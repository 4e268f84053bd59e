"""Hand-over: another bus takes the place of this one, with all of its clients.

The old bus serves until the new one is ready and has prepared for the clients. Then it accepts no
more connections, and its workers freeze: what has its place in the order is delivered or in a
backlog, packets that were read and are not done are pending, and everything else is in the kernel's
sockets. So nothing is on its way when the workers write their snapshots.

Up to `Commit` the old bus can go on at any time, and does so when the new one fails or takes too
long: nothing that it needs was given away, only copies.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec
import trio

from sbus.broker.events.emitter import describe_bug
from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.bus_recorder import BusRecorder
from sbus.broker.front.mover import ClientMover
from sbus.broker.front.shutdown import Shutdown
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.worker_rounds import WorkerRounds
from sbus.broker.ipc import upgrade_link as link_protocol
from sbus.broker.ipc.bus_record import write_owning_memfd
from sbus.broker.ipc.client_record import UnknownVersion, check_version
from sbus.broker.ipc.records_file import make_records_file
from sbus.broker.ipc.upgrade_link import SOCKETS_PER_PACKET, UpgradeFailed, send_when_possible
from sbus.broker.ipc.worker_protocol import Freeze, RecordClients, Thaw
from sbus.unix.fd_passing import DescriptorsLost

_READY_SECONDS_MAX = 10.0
_REPLACED_SECONDS_MAX = 10.0
"""A worker that keeps dying is forked again after 5 s at most."""
_PREPARED_SECONDS_MAX = 20.0
_PREPARATIONS_MAX = 8
_CHANGES_MAX = 300_000
"""In the last preparation, by one worker: a tenth of a second. About as many follow."""
_PAUSE_SECONDS_MAX = 5.0
"""In which nobody is served. A thousand clients need a tenth of a second."""
_SERVING_SECONDS_MAX = 2.0

M = TypeVar("M", bound=msgspec.Struct)


class HandOverResult(msgspec.Struct, frozen=True):
    """What was handed over."""

    program: str
    """The version of the new program."""
    pid: int
    clients: int
    pause_seconds: float
    """For how long nobody was served."""


class HandOver:
    """Of one bus, which is handed over once at most."""

    def __init__(
        self,
        supervisor: Supervisor,
        rounds: WorkerRounds,
        acceptor: Acceptor,
        mover: ClientMover,
        recorder: BusRecorder,
        shutdown: Shutdown,
    ) -> None:
        self._supervisor = supervisor
        self._rounds = rounds
        self._acceptor = acceptor
        self._mover = mover
        self._recorder = recorder
        self._shutdown = shutdown
        self._sent: set[int] = set()
        """Clients whose sockets the new program has."""

    async def run(
        self,
        link: socket.socket,
        offer: link_protocol.Offer,
        fds: list[int],
        on_commit: Callable[[], None],
    ) -> HandOverResult:
        """Hand the bus over to the program at the other end of this link, which gets copies of the
        descriptors. `on_commit` is called at the moment from which on the new bus serves. Raises
        UpgradeFailed: if `on_commit` was not called, this bus serves as before, and else none
        does."""
        try:
            hello, paused_at = await self._carry_out(link, offer, fds)
        except BaseException as error:
            why = _why_not(link, error)
            self._serve_as_before(link, why)
            if isinstance(error, Exception):
                raise UpgradeFailed(why) from error
            raise
        pause_seconds = time.monotonic() - paused_at
        on_commit()
        self._supervisor.stop_replacing()
        self._acceptor.leave_waiting()
        clients = len(self._recorder.clients())
        await _wait_until_serving(link)
        return HandOverResult(hello.program, hello.pid, clients, pause_seconds)

    async def _carry_out(
        self, link: socket.socket, offer: link_protocol.Offer, fds: list[int]
    ) -> tuple[link_protocol.Hello, float]:
        """Up to the commit. Returns the new program's greeting, and since when nobody was
        served."""
        self._sent.clear()
        with _limit(_READY_SECONDS_MAX, "the new program was not ready"):
            hello = await _receive(link, link_protocol.Hello)
            check_version(hello.version)
            await send_when_possible(link, offer, *fds)
            await _receive(link, link_protocol.Ready)
        with _limit(_REPLACED_SECONDS_MAX, "a worker that died was not replaced"):
            await self._rounds.begin()
        async with self._mover.paused():
            with _limit(_PREPARED_SECONDS_MAX, "the new bus was not prepared for all clients"):
                await self._prepare(link)
            paused_at = time.monotonic()
            self._acceptor.pause()
            with _limit(_PAUSE_SECONDS_MAX, "the new bus did not take all clients over"):
                await self._rounds.run(Freeze)
                await self._send_all(link, is_final=True)
                await _receive(link, link_protocol.Adopted)
            self._send_commit(link)
        return hello, paused_at

    async def _prepare(self, link: socket.socket) -> None:
        """Have the new bus prepare for all clients, and for what changes meanwhile, until that is
        little. Raises UpgradeFailed, OSError, msgspec.DecodeError."""
        for _ in range(_PREPARATIONS_MAX):
            await self._send_all(link, is_final=False)
            changes, uid = self._rounds.most_changes
            await _receive(link, link_protocol.Prepared)
            if changes <= _CHANGES_MAX:
                return
        raise UpgradeFailed(
            f"subscriptions and backlogs change faster than they are copied, those of user {uid}"
            " most: disconnect its clients, or try again"
        )

    def _send_commit(self, link: socket.socket) -> None:
        """From here on the new bus serves, and nothing of this one does. Raises UpgradeFailed,
        OSError, and then nothing has happened."""
        self._rounds.check()
        if self._shutdown.is_ending:
            raise UpgradeFailed("the old bus ends")
        link_protocol.send(link, link_protocol.Commit())

    def _serve_as_before(self, link: socket.socket, why: str) -> None:
        """Call the hand-over off."""
        # One that does not get this, because its link is full, has not said `Adopted`.
        with suppress(OSError):
            link_protocol.send(link, link_protocol.Abort(why))
        for worker in self._supervisor.running_workers():
            self._supervisor.send(worker, Thaw())
        self._acceptor.resume()

    # -- what is sent --------------------------------------------------------------------------
    async def _send_all(self, link: socket.socket, *, is_final: bool) -> None:
        """Send the records of all clients, and those sockets that were not sent before."""
        files: dict[int, int] = {}
        try:
            for worker in self._supervisor.running_workers():
                files[worker] = make_records_file()
            await self._rounds.run_each(
                lambda number, worker: (RecordClients(number), files[worker])
            )
            record = self._recorder.record()
            for memfd in files.values():
                await send_when_possible(link, link_protocol.RecordsOfClients(), memfd)
        finally:
            for memfd in files.values():
                os.close(memfd)
        clients = [it for it in self._recorder.clients() if it.number not in self._sent]
        self._sent.update(client.number for client in clients)
        await _send_sockets(link, (client.sock for client in clients))
        if is_final:
            await _send_sockets(link, self._recorder.waiting())
        memfd = write_owning_memfd(record)
        try:
            message = link_protocol.RecordOfBus(is_final=is_final)
            await send_when_possible(link, message, memfd)
        finally:
            os.close(memfd)


@contextmanager
def _limit(seconds_max: float, what: str) -> Iterator[None]:
    """Raises UpgradeFailed when the block takes longer."""
    with trio.move_on_after(seconds_max) as scope:
        yield
    if scope.cancelled_caught:
        raise UpgradeFailed(f"{what} within {seconds_max:g} s")


async def _send_sockets(link: socket.socket, sockets: Iterable[socket.socket]) -> None:
    """Send copies; one that was closed meanwhile is not needed any more."""
    left = list(sockets)
    while left:
        fds = [fd for sock in left[:SOCKETS_PER_PACKET] if (fd := sock.fileno()) >= 0]
        del left[:SOCKETS_PER_PACKET]
        if fds:
            await send_when_possible(link, link_protocol.Sockets(), *fds)


async def _receive(link: socket.socket, expected: type[M]) -> M:
    """The next message of the new program. Raises UpgradeFailed, OSError, msgspec.DecodeError."""
    while True:
        try:
            message = link_protocol.receive_from_new(link)
            break
        except BlockingIOError:
            await trio.lowlevel.wait_readable(link)
    if message is None:
        raise UpgradeFailed("the new program has ended")
    if isinstance(message, link_protocol.Failed):
        raise UpgradeFailed(message.why)
    if not isinstance(message, expected):
        raise UpgradeFailed(f"the new program says {message} out of turn")
    return message


def _why_not(link: socket.socket, error: BaseException) -> str:
    """Why the bus was not handed over; any error before the commit is a reason."""
    match error:
        case UpgradeFailed():
            return str(error)
        case BrokenPipeError() | ConnectionResetError():
            return _why_it_ended(link)
        case OSError():
            return f"cannot hand over: {error.strerror}"
        case DescriptorsLost():
            return f"cannot hand over: {error}"
        case UnknownVersion() | msgspec.DecodeError():
            return f"the new program: {error}"
        case Exception():
            why, where = describe_bug(error)
            return f"a bug of the old program: {why} ({where})"
    return "the old bus ends"


def _why_it_ended(link: socket.socket) -> str:
    """What the new program said at last, which reads nothing any more."""
    with suppress(OSError, msgspec.DecodeError, DescriptorsLost):
        while (message := link_protocol.receive_from_new(link)) is not None:
            if isinstance(message, link_protocol.Failed):
                return message.why
    return "the new program has ended"


async def _wait_until_serving(link: socket.socket) -> None:
    """Wait until the new bus, which has the clients, serves; but not for long. Raises
    UpgradeFailed."""
    try:
        with trio.move_on_after(_SERVING_SECONDS_MAX):
            await _receive(link, link_protocol.Serving)
    except (OSError, UpgradeFailed, msgspec.DecodeError) as error:
        raise UpgradeFailed(
            f"no bus serves any more, because the new one has failed: {error}"
        ) from error
