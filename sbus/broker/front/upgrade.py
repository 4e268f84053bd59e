"""Upgrade: a new program takes the place of this bus.

Either this bus starts the program, by the command line that started it, and so in a new version if
that was installed meanwhile; or an administrator starts it with `--take-over`, and it asks on the
admin socket. From then on both are the same: see `hand_over`.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import trio

from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.client_store import ClientStore
from sbus.broker.front.hand_over import HandOver, HandOverResult
from sbus.broker.front.shutdown import Shutdown
from sbus.broker.ipc.upgrade_link import FileRecord, Offer, UpgradeFailed
from sbus.bus_options import PREDECESSOR_VARIABLE
from sbus.protocol.events import BusHandedOver, UpgradeRejected
from sbus.unix.bus_files import BusFiles
from sbus.unix.notify import Notifier
from sbus.unix.users import Identity

_EXIT_SECONDS_MAX = 1.0


class ProgramCommand(msgspec.Struct, frozen=True):
    """The command line of a bus, and the directory and the environment that it was given in."""

    arguments: list[str]
    directory: str
    environment: dict[str, str]


class Estate(msgspec.Struct, frozen=True, kw_only=True):
    """What a bus leaves to the one that takes its place, besides its clients."""

    listener: socket.socket
    admin_listener: socket.socket | None
    is_inherited: bool
    dialect: str
    files: BusFiles
    owner: Identity
    """Who started the bus."""
    command: ProgramCommand | None
    """None where nothing can be started."""

    @contextmanager
    def offer(self) -> Iterator[tuple[Offer, list[int]]]:
        """For the new program, with its descriptors, which stay open during the block."""
        files, admin = self.files, self.admin_listener
        pidfd = os.pidfd_open(os.getpid())
        pidfile = files.pidfile
        fds = [it.fileno() for it in (admin, pidfile) if it is not None]
        if files.remover_fd is not None:
            fds.append(files.remover_fd)
        offer = Offer(
            has_admin_listener=admin is not None,
            has_pidfile=pidfile is not None,
            has_remover=files.remover_fd is not None,
            is_inherited=self.is_inherited,
            dialect=self.dialect,
            files=[FileRecord(path.path, path.device, path.inode) for path in files.paths],
            owner=self.owner,
        )
        try:
            yield offer, [self.listener.fileno(), pidfd, *fds]
        finally:
            os.close(pidfd)


class Upgrader:
    """Of one bus."""

    def __init__(
        self,
        hand_over: HandOver,
        estate: Estate,
        shutdown: Shutdown,
        client_store: ClientStore,
        events: EventEmitter,
        notifier: Notifier,
    ) -> None:
        self._client_store = client_store
        self._hand_over = hand_over
        self._estate = estate
        self._shutdown = shutdown
        self._events = events
        self._notifier = notifier
        self.is_running = False
        """Whether another program is to take over, or has."""
        self._changes = 0

    @contextmanager
    def change(self) -> Iterator[None]:
        """The bus may change in the block, in a way that a new program might not notice: none takes
        over meanwhile. Raises UpgradeFailed."""
        if self.is_running:
            raise UpgradeFailed("another program is taking over: try again in a moment")
        self._changes += 1
        try:
            yield
        finally:
            self._changes -= 1

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Another program may take over in the block; one at a time. If it has, this process ends
        then. Raises UpgradeFailed."""
        if self.is_running:
            raise UpgradeFailed("another program is taking over already")
        if self._shutdown.is_draining:
            raise UpgradeFailed("the bus is being drained")
        if self._changes:
            raise UpgradeFailed("the bus is changing, as by a reload: try again in a moment")
        self.is_running = True
        try:
            yield
        except UpgradeFailed as error:
            if self._shutdown.is_handed_over:
                self._estate.files.take_back()
                self._shutdown.fail(error)
            raise
        finally:
            if self._shutdown.is_handed_over:
                self._shutdown.finish_hand_over()
            else:
                self.is_running = False

    async def start_program(self) -> HandOverResult:
        """Start a new program and hand the bus over to it, in an `attempt`. Raises
        UpgradeFailed."""
        with self._failure_reported():
            command = self._estate.command
            if command is None:
                raise UpgradeFailed("this bus does not know how it was started")
            if os.access(command.directory, os.X_OK):
                return await self._start(command)
            try:
                return await self._start(msgspec.structs.replace(command, directory="/"))
            except UpgradeFailed as error:
                where = f"started in /, because {command.directory} cannot be entered"
                raise UpgradeFailed(f"{error} ({where})") from error

    async def _start(self, command: ProgramCommand) -> HandOverResult:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                process = _start(command, theirs.fileno())
            try:
                return await self._hand_over_to(ours)
            except BaseException:
                if not self._shutdown.is_handed_over:
                    await _end(process)
                raise

    def check_take_over(self) -> None:
        """Raise UpgradeFailed if no program may take over that this bus has not started."""
        if self._notifier.has_manager:
            # It would take the end of this process for that of the service.
            raise UpgradeFailed("a service manager runs this bus: use `sbusctl upgrade`")

    async def hand_over_to(self, link: socket.socket) -> HandOverResult:
        """Hand the bus over to the program at the other end of this link, in an `attempt`. Raises
        UpgradeFailed."""
        with self._failure_reported():
            return await self._hand_over_to(link)

    @contextmanager
    def _failure_reported(self) -> Iterator[None]:
        try:
            yield
        except (UpgradeFailed, OSError) as error:
            why = (
                str(error)
                if isinstance(error, UpgradeFailed)
                else f"cannot hand over: {error.strerror}"
            )
            if not self._shutdown.is_handed_over:
                self._events.emit(UpgradeRejected(why=why))
            raise UpgradeFailed(why) from error

    async def _hand_over_to(self, link: socket.socket) -> HandOverResult:
        link.setblocking(False)
        with self._estate.offer() as (offer, fds):
            result = await self._hand_over.run(link, offer, fds, self._on_commit)
        self._notifier.hand_over(result.pid)
        milliseconds = round(result.pause_seconds * 1_000)
        self._events.emit(
            BusHandedOver(new_pid=result.pid, clients=result.clients, milliseconds=milliseconds)
        )
        return result

    def _on_commit(self) -> None:
        self._shutdown.hand_over()
        self._estate.files.hand_over()
        self._client_store.give_up()

    async def replace_program(self) -> None:
        """Have a new program serve by the same command line, unless that is not possible."""
        with suppress(UpgradeFailed), self.attempt():  # which is logged
            await self.start_program()

    @property
    def is_handed_over(self) -> bool:
        return self._shutdown.is_handed_over


def _start(command: ProgramCommand, link_fd: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command.arguments,
            cwd=command.directory,
            env={**command.environment, PREDECESSOR_VARIABLE: str(link_fd)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[link_fd],
        )
    except OSError as error:
        program = command.arguments[0]
        raise UpgradeFailed(f"cannot start {program}: {error.strerror}") from error


async def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program that has not taken over, and wait for it."""
    with trio.CancelScope(shield=True), suppress(ProcessLookupError):
        pidfd = os.pidfd_open(process.pid)
        with trio.move_on_after(_EXIT_SECONDS_MAX):
            await trio.lowlevel.wait_readable(pidfd)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await trio.lowlevel.wait_readable(pidfd)
        os.close(pidfd)
    process.wait()
