"""The front: lets clients in, gives each to the worker with the fewest, and keeps the bus together.

It keeps a copy of every client's socket. It never reads or writes them: the copy lets it end the
connections of a worker that died in good order, and later hand them to its successor. Every client
is known here from its admission until its worker, or that worker's death, says that it has left.

This module does not know packets, subscriptions or the order of messages.
"""

import os
import signal
import socket
from collections.abc import Callable

import msgspec
import trio

from sbus.broker.access import PeerRules, pack
from sbus.broker.admission import Door
from sbus.broker.bounded_lock import trying
from sbus.broker.complaints import Complaints
from sbus.broker.configuration import Configuration
from sbus.broker.handoff import Adopt, Gone, Report
from sbus.broker.reload import Reloader
from sbus.broker.settings import BusSettings
from sbus.broker.supervisor import Supervisor
from sbus.broker.template import Template
from sbus.protocol.admin_results import ReloadResult
from sbus.shared.accounts import Account, AccountBook
from sbus.shared.compaction import Compaction
from sbus.shared.segment import COMPACTION_WANTED, TABLE_TAIL, Segment
from sbus.shared.subscription_table import all_have_read
from sbus.unix.closing import drain, shut_down
from sbus.unix.credentials import Credentials

_READERS_RETRY_SECONDS = 0.01


class _Client(msgspec.Struct):
    worker: int
    account: Account
    sock: socket.socket
    credentials: Credentials


class Front:
    """The front of one bus. Borrows `listener`; `reread` says what is to hold, see `Reloader`."""

    def __init__(
        self,
        configuration: Configuration,
        reread: Callable[[], Configuration],
        listener: socket.socket,
        segment: Segment,
        template: Template,
        on_ready: Callable[[], None],
    ) -> None:
        settings = configuration.settings
        self._settings = settings
        self._limits = settings.limits
        self._segment = segment
        self._on_ready = on_ready
        self._complaints = Complaints(settings.limits.log_interval_seconds)
        self._book = AccountBook(segment.accounts, segment.workers, settings.limits)
        self._limit_users()
        self._door = Door(listener, settings, self._book, self._complaints)
        self._supervisor = Supervisor(
            template, segment, settings, self._book, self._on_report, self._on_worker_death
        )
        self._clients: dict[int, _Client] = {}
        self._reloader = Reloader(
            configuration, reread, self._clients, self._supervisor, self._go_by
        )
        self._load = [0] * settings.workers
        self._admitted = 0
        self._stop = trio.Event()

    async def run(self) -> None:
        """Serve until a signal, or until the last client has left where that was asked for."""
        async with trio.open_nursery() as tasks:
            await tasks.start(self._stop_on_signal)
            await self._supervisor.run(tasks)
            self._on_ready()
            letting_in = trio.CancelScope()
            tasks.start_soon(self._let_in, letting_in)
            tasks.start_soon(self._keep_table_small)
            await self._stop.wait()
            letting_in.cancel()
            await self._supervisor.stop()
            tasks.cancel_scope.cancel()
        for number in list(self._clients):
            self._cut_off(number)

    async def _stop_on_signal(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                self._stop.set()

    # -- clients -------------------------------------------------------------------------------
    async def _let_in(self, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                who = await self._door.next_client()
                worker = await self._supervisor.wait_for_worker(self._load)
                self._admitted += 1
                self._clients[self._admitted] = _Client(
                    worker, who.account, who.sock, who.credentials
                )
                self._load[worker] += 1
                # Its rules are looked up now: they may have changed while it waited for a worker.
                rules = pack(self._door.concerning(who.sock, who.credentials))
                order = Adopt(self._admitted, who.credentials, who.account.place, rules)
                self._supervisor.tell(worker, order, who.sock.fileno())
                await trio.lowlevel.checkpoint()

    def _on_report(self, _worker: int, report: Report) -> None:
        if isinstance(report, Gone):
            self._give_up(report.client)

    def _on_worker_death(self, worker: int) -> None:
        for number, client in list(self._clients.items()):
            if client.worker == worker:
                self._cut_off(number)

    def _cut_off(self, number: int) -> None:
        """End the connection of a client whose worker did not, in good order."""
        drain(self._clients[number].sock, self._limits.drain_packets_max)
        self._give_up(number)

    def _give_up(self, number: int) -> None:
        """Forget a client, and close this copy of its socket."""
        client = self._clients.pop(number)
        self._load[client.worker] -= 1
        shut_down(client.sock)
        self._door.client_left(client.account)
        if self._settings.exit_when_empty and not self._clients:
            self._stop.set()

    # -- settings ------------------------------------------------------------------------------
    async def reload(self) -> ReloadResult:
        """Read the configuration anew and go by it. Raises ConfigurationError; nothing is changed
        then."""
        return await self._reloader.reload()

    def _go_by(self, settings: BusSettings, rules: PeerRules) -> None:
        """Have other settings from now on; `rules` are theirs."""
        self._settings = settings
        self._limits = settings.limits
        self._complaints.interval_seconds = settings.limits.log_interval_seconds
        self._door.go_by(settings, rules)
        self._limit_users()

    def _limit_users(self) -> None:
        settings = self._settings
        kept = {0, os.getuid(), *settings.user_limits}
        self._book.go_by(settings.limits, settings.limits_of, kept)

    # -- the subscription table ----------------------------------------------------------------
    async def _keep_table_small(self) -> None:
        """Compact the table whenever a worker finds that it has grown."""
        eventfd = self._segment.eventfds[self._settings.workers]
        while True:
            await trio.lowlevel.wait_readable(eventfd)
            os.eventfd_read(eventfd)
            await self._compact()

    async def _compact(self) -> None:
        compaction = None
        while compaction is None:
            async with trying(self._segment) as words:
                if not words[COMPACTION_WANTED]:
                    return
                if all_have_read(self._segment, words):
                    compaction = Compaction(self._segment, words)
            if compaction is None:
                self._segment.wake((1 << self._settings.workers) - 1)
                await trio.sleep(_READERS_RETRY_SECONDS)
        while compaction.step():
            await trio.lowlevel.checkpoint()
        finished = False
        while not finished:
            async with trying(self._segment) as words:
                finished = compaction.finish(words)
                tail = words[TABLE_TAIL]
            if not finished:
                compaction.copy_journal(tail)
        self._segment.wake((1 << self._settings.workers) - 1)
