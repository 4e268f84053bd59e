"""A worker: one process that serves its share of the clients.

One task does the work: it asks its own epoll set which clients have sent something (once for all
that have), gives them turns, and when nobody is in line walks the log and sleeps. The set is
edge-triggered: readiness puts a client in line, and it stays there until its socket is empty. The
set itself is one descriptor of trio's loop, so that a thousand busy clients enter that loop once.

Beside it run the writers of clients with a backlog, a listener for the front's orders, and the
heartbeat. The worker ends when the front says so, and at once when the front is gone.

This module does not know what a turn is (the clients do), nor the order of messages (the sequencer
does).
"""

import os
import select
import socket

import trio

from sbus.broker.config.settings import BusSettings, read_memfd
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.ipc.link import Link, lost_command
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    ApplySettings,
    ClientLeft,
    DisconnectClient,
    QueryReply,
    Quiesce,
    RunQuery,
    SelfServiceReply,
    SettingsApplied,
    StartStream,
    Stop,
    StopStream,
    StreamStarted,
    WorkerCommand,
    WorkerQuiesced,
    WorkerReady,
)
from sbus.broker.worker.clients import Clients
from sbus.broker.worker.scheduler import Writer
from sbus.broker.worker.streams import WorkerStreams
from sbus.protocol.events import WorkerGivesUp
from sbus.protocol.keys import DIALECTS
from sbus.shared.shared_memory import SharedMemory
from sbus.unix.fd_passing import DescriptorsLost

_EVENTS_PER_POLL = 256
_UNITS_PER_POLL = 64
"""Work after which whoever has sent something meanwhile gets in line; a look costs as much as one
or two units."""
_UNITS_PER_CHECKPOINT = 1_024
"""Work after which the other tasks get a look in: about a millisecond."""


class Worker:
    """Worker `number` of the bus. Takes `link_socket`, its end of the link to the front."""

    def __init__(
        self,
        number: int,
        memory: SharedMemory,
        settings: BusSettings,
        link_socket: socket.socket,
        events: EventEmitter,
    ) -> None:
        self._number = number
        self._memory = memory
        self._settings = settings
        self._events = events
        self._limits = settings.limits
        self._eventfd = memory.eventfds[number]
        self._epoll = select.epoll()
        self._link_socket = link_socket
        self._nap = trio.CancelScope()
        """In which the worker sleeps."""
        self._quiet = False
        self._stopping = False

    # -- tasks ---------------------------------------------------------------------------------
    async def run(self) -> None:
        """Serve until told to stop."""
        self._epoll.register(self._eventfd, select.EPOLLIN)
        self._memory.record_heartbeat(self._number)
        async with trio.open_nursery() as tasks:
            self._link = Link(self._link_socket, tasks)
            async with trio.open_nursery() as writers:
                self._clients = Clients(
                    self._number,
                    self._memory,
                    self._settings,
                    self._epoll,
                    self._link,
                    writers.start_soon,
                    lambda: self._nap.cancel(),
                    self._events,
                )
                self._watches = WorkerStreams(
                    self._number,
                    self._clients,
                    self._events,
                    DIALECTS[self._settings.dialect],
                    tasks.start_soon,
                )
                tasks.start_soon(self._listen, tasks.cancel_scope)
                tasks.start_soon(self._beat)
                self._link.send(WorkerReady())
                await self._serve()
                tasks.start_soon(self._send_backlogs)
                writers.cancel_scope.deadline = (
                    trio.current_time() + self._limits.stop_seconds_max / 2
                )
            self._clients.close_all()
            self._events.close()
            self._clients.share_statistics()
            tasks.cancel_scope.cancel()

    async def _beat(self) -> None:
        while True:
            self._memory.record_heartbeat(self._number)
            await trio.sleep(self._limits.heartbeat_seconds)

    async def _listen(self, everything: trio.CancelScope) -> None:
        """Obey the front; when it is gone, so is the bus."""
        while True:
            try:
                command, fds = self._link.receive_command()
            except BlockingIOError:
                await self._link.wait()
                continue
            except DescriptorsLost as lost:
                lost_here = lost_command(lost)
                if isinstance(lost_here, ApplySettings):
                    # Under the old rules it must not go on. A successor begins with the new ones.
                    self._events.emit(WorkerGivesUp(worker=self._number))
                    everything.cancel()
                    return
                self._answer_lost(lost_here)
                continue
            if command is None:
                everything.cancel()
                return
            if isinstance(command, AdoptClient):
                self._clients.adopt(command, fds[0])
            elif isinstance(command, ApplySettings):
                self._reconfigure(command, fds[0])
            elif isinstance(command, StartStream):
                self._watches.begin(command, fds[0])
                self._link.send(StreamStarted(command.stream))
            else:
                self._obey(command)
            self._memory.wake(1 << self._number)

    def _reconfigure(self, command: ApplySettings, memfd: int) -> None:
        what = read_memfd(memfd)
        os.close(memfd)
        self._limits = what.settings.limits
        self._clients.reconfigure(what, lambda: self._link.send(SettingsApplied(command.number)))

    def _obey(self, command: WorkerCommand) -> None:
        if isinstance(command, RunQuery):
            self._link.send(QueryReply(command.number, self._clients.answers.answer(command.query)))
        elif isinstance(command, SelfServiceReply):
            self._clients.tell(command)
        elif isinstance(command, DisconnectClient):
            self._clients.expel(command)
        elif isinstance(command, StopStream):
            self._watches.end(command.stream)
        elif isinstance(command, Quiesce):
            self._clients.scheduler.quiescing = True
        elif isinstance(command, Stop):
            self._stopping = True

    def _answer_lost(self, command: WorkerCommand) -> None:
        """A command came without its descriptor, because this worker has none left."""
        if isinstance(command, AdoptClient):
            self._link.send(ClientLeft(command.client, "the worker has no descriptors left"))
        elif isinstance(command, StartStream):
            self._link.send(StreamStarted(command.stream, has_begun=False))

    async def _serve(self) -> None:
        """Give turns while anybody is in line; otherwise walk the log, and sleep."""
        clients, sequencer = self._clients, self._clients.sequencer
        scheduler = clients.scheduler
        units = 0
        while not self._stopping:
            units += self._give_turns(_UNITS_PER_CHECKPOINT - units)
            chores = clients.subscriptions.do_a_chore()
            if chores or units >= _UNITS_PER_CHECKPOINT:
                units = 0
                sequencer.barrier()
                self._charge_walk()
                clients.share_statistics()
                await trio.lowlevel.checkpoint()
                continue
            if scheduler.quiescing and not self._quiet and not scheduler.waiting.for_room():
                self._quiet = True
                self._link.send(WorkerQuiesced())
            if sequencer.catch_up():
                units = 0
                clients.share_statistics()
                with trio.move_on_after(scheduler.waiting.delay_seconds()) as self._nap:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
            units += 1 + self._charge_walk()
        while not sequencer.catch_up():
            await trio.lowlevel.checkpoint()

    async def _send_backlogs(self) -> None:
        """Give turns to backlogs and to nothing else: nobody is read any more."""
        while True:
            while (client := self._clients.scheduler.turns.next()) is not None:
                if isinstance(client, Writer):
                    self._clients.scheduler.turn(client)
                await trio.lowlevel.checkpoint()
            with trio.CancelScope() as self._nap:
                await trio.sleep_forever()

    def _give_turns(self, units_max: int) -> int:
        """Give turns until nobody is in line or enough work is done; returns the work."""
        units, polled_at = 0, -_UNITS_PER_POLL
        while units < units_max:
            if units - polled_at >= _UNITS_PER_POLL:
                polled_at = units
                self._poll()
                self._clients.scheduler.retry_due()
            session = self._clients.scheduler.turns.next()
            if session is None:
                break
            units += self._clients.scheduler.turn(session)
        return units

    def _poll(self) -> None:
        for fd, _ in self._epoll.poll(0, _EVENTS_PER_POLL):
            if fd == self._eventfd:
                os.eventfd_read(self._eventfd)
                self._clients.retry()
            else:
                self._clients.ready(fd)

    def _charge_walk(self) -> int:
        """Charge what was delivered for publishers of other workers to their users here."""
        total = 0
        for uid, units in self._clients.sequencer.take_walked_units().items():
            self._clients.scheduler.turns.charge(uid, units)
            total += units
        return total
