"""A bridge, put together from its configuration: the local bus, the links, and what it tells of
itself."""

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from sbus.bridge.configuration import Configuration
from sbus.bridge.durable_export import DurableExport
from sbus.bridge.durable_import import DurableImport
from sbus.bridge.exchange import Exchange
from sbus.bridge.kept_reader import KeptReader
from sbus.bridge.ledger import Ledger
from sbus.bridge.local_bus import ChannelReader, LocalPublisher, publishing
from sbus.bridge.nats_link import NatsLink
from sbus.bridge.own_keys import STATUS_KEY
from sbus.bridge.status import BridgeStatus, DurableStatus, OriginStatus
from sbus.bridge.uplink import Uplink
from sbus.client.asynchronous import connect
from sbus.errors import ConfigurationError, reason_of
from sbus.unix.activation import take_named_descriptors
from sbus.unix.kept_sockets import KeptSockets
from sbus.unix.notify import Notifier
from sbus.version import __version__

BEAT_SECONDS = 1.0
_CANCEL_SECONDS = 1.0
ORIGINS_SHOWN_MAX = 1_000
"""In its status, which is one message."""
REPORTED_MAX = 1_000
"""What was reported, and is not reported again."""


class Bridge:
    """One bridge; `report` gets lines for people. Raises OSError, ConfigurationError."""

    def __init__(
        self, plan: Configuration, report: Callable[[str], None], notifier: Notifier
    ) -> None:
        self.plan = plan
        self._lock = _lock(plan.state) if plan.state else None
        self._notifier = notifier
        self._report_line = report
        self._reported: set[str] = set()
        self.publisher = LocalPublisher(plan.channels, self.report)
        self.exchange = Exchange(plan, self.publisher.deliver, self.report)
        self._wanted: set[str] = set()
        self.readers: dict[str, ChannelReader] = {}
        self.links: list[NatsLink | Uplink] = [
            (Uplink if link.uplink else NatsLink)(
                name, link, self.exchange, self._want, self.report
            )
            for name, link in plan.links.items()
        ]
        for link in self.links:
            link.import_room = self.publisher.room
        self._sockets = KeptSockets(notifier, take_named_descriptors())
        self.durable_imports: dict[str, DurableImport] = {}
        self.durable_readers: dict[str, KeptReader] = {}
        self.durable = {
            name: DurableStatus(name) for name, channel in plan.channels.items() if channel.durable
        }
        for link in self.links:
            if isinstance(link, NatsLink):
                self._add_durable(link)
        used = {it.socket_name for it in self.durable_imports.values()}
        self._sockets.end_others(used | {it.socket_name for it in self.durable_readers.values()})
        self.exchange.ports[:] = self.links
        exported = {name for link in self.links for name in link.exports}
        for name in exported:
            self.readers[name] = ChannelReader(
                self.publisher.statuses[name], plan.channels[name], self.exchange
            )
        for name in self._wanted:
            self._want(name)

    def _add_durable(self, link: NatsLink) -> None:
        prefix = link.plan.prefix
        for name in link.plan.exports:
            if self.plan.channels[name].durable:
                export = DurableExport(self.durable[name], prefix, self.exchange, self.report)
                link.durable.append(export)
                self.durable_readers[name] = KeptReader(
                    self.publisher.statuses[name], self.plan, export, self._sockets
                )
        for name in link.plan.imports:
            if self.plan.channels[name].durable:
                imported = DurableImport(
                    self.durable[name],
                    prefix,
                    self.plan,
                    self.publisher.messages_of,
                    self.report,
                    self._sockets,
                )
                self.durable_imports[name] = imported
                link.durable.append(imported)

    def report(self, key: str, text: str) -> None:
        """Report this, once."""
        if key not in self._reported:
            if len(self._reported) >= REPORTED_MAX:
                self._reported.clear()
            self._reported.add(key)
            self._report_line(text)

    def _want(self, channel: str) -> None:
        """Somebody imports this channel, so its reader begins."""
        self._wanted.add(channel)
        if channel in self.readers:
            self.readers[channel].wanted.set()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises SbusError."""
        stop = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(self._note_loop_error)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        try:
            async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
                bus = await stack.enter_async_context(publishing(self.plan.address))
                readers = (*self.readers.values(), *self.durable_readers.values())
                work = [
                    self.publisher.run(bus),
                    self.publisher.watch(bus),
                    self._answer(),
                    self._beat(),
                    *(it.run(self.plan.address, self._wait_room) for it in readers),
                    *(link.run() for link in self.links),
                ]
                running = {tasks.create_task(it) for it in work}
                self._notifier.ready(str(self.plan))
                await stop.wait()
                self._notifier.stopping("stopping")
                while running:  # the NATS client swallows cancellations now and then
                    for task in running:
                        task.cancel()
                    _, running = await asyncio.wait(running, timeout=_CANCEL_SECONDS)
        except BaseExceptionGroup as group:
            raise reason_of(group) from group

    def _note_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A task of the NATS client has failed that nobody waits for, or was left behind."""
        error = context.get("exception")
        if isinstance(error, OSError):
            self.report(f"loop {error}", f"the NATS client lost a connection: {error}")
        elif "was destroyed but it is pending" not in context["message"]:
            loop.default_exception_handler(context)

    async def _wait_room(self, channel: str) -> None:
        for port in self.exchange.ports:
            if channel in port.exports:
                await port.room.wait()

    async def _beat(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self.exchange.tick(clock())
            for traffic in (*(link.status for link in self.links), *self.durable.values()):
                traffic.end_second()
            if self._notifier.watchdog_seconds is not None:
                self._notifier.alive()
            await asyncio.sleep(BEAT_SECONDS)

    def status(self) -> BridgeStatus:
        """What it tells of itself."""
        imported = {name: channel.ledgers for name, channel in self.durable_imports.items()}
        ledgers: dict[str, dict[str, Ledger[Any]]] = {**self.exchange.ledgers, **imported}
        origins = [
            OriginStatus(name, origin, it.held, it.behind, list(map(" ".join, it.ways)), it.counts)
            for name, by_origin in ledgers.items()
            for origin, it in by_origin.items()
        ]
        return BridgeStatus(
            version=__version__,
            origin=self.plan.origin,
            host=self.plan.host,
            looped=self.exchange.looped,
            channels=list(self.publisher.statuses.values()),
            links=[link.status for link in self.links],
            durable=list(self.durable.values()),
            origins=origins[:ORIGINS_SHOWN_MAX],
            origins_left_out=len(origins[ORIGINS_SHOWN_MAX:]),
        )

    async def _answer(self) -> None:
        """Answer requests for the status of the bridge."""
        async with connect(self.plan.address, reconnect=True) as bus:
            own_key = (await bus.whoami()).secret_key(STATUS_KEY)
            async with bus.requests(own_key) as requests:
                async for request in requests:
                    await request.reply(msgspec.json.encode(self.status()))


def _lock(state: str) -> int:
    """Hold this directory while the process lives."""
    fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(f"bridge.state: another bridge uses {state}") from error
    return fd
