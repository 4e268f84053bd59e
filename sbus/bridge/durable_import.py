"""Importing a durable channel: what the stream brings is published on the local bus.

Before a message is published, a file tells of it, and how many messages the bus will then have
published for this connection; the file has a flag until the message is sent. A successor that finds
this flag asks the bus for the number, if it goes on with the connection, and so knows whether the
message was published. Otherwise the message is published again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from sbus.bridge.configuration import Configuration
from sbus.bridge.durable import StreamReader
from sbus.bridge.envelope import Crossing
from sbus.bridge.ledger import Gap
from sbus.bridge.own_keys import NAME
from sbus.bridge.status import DurableStatus
from sbus.client.kept_connection import KeptConnection, kept_connection
from sbus.client.receipts import OpenReceipt
from sbus.errors import BusError, PacketRefused
from sbus.unix.kept_sockets import KeptSockets, socket_name
from sbus.unix.state_file import StateFile

_OPEN_MAX: Final = 64
"""Receipts that a client may wait for."""


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """What is published without the bus having confirmed it."""

    cookie: int = 0
    """Of the socket."""
    count: int = 0
    """Of the messages published there, with the last one."""
    marks: list[tuple[str, str, int]] = []
    """Origin, epoch and number of each."""


class DurableImport(StreamReader):
    """Of one channel. Its name on the bus is its own, and so is its connection, which also outlives
    a link that is lost."""

    def __init__(
        self,
        status: DurableStatus,
        prefix: str,
        plan: Configuration,
        messages_of: Callable[[str, str, Crossing | Gap], list[tuple[bytes, bytes]]],
        report: Callable[[str, str], None],
        sockets: KeptSockets,
    ) -> None:
        """`messages_of` gives the keys and payloads to publish for what is delivered."""
        super().__init__(status, prefix, plan, report)
        self._bus: KeptConnection
        self._address = plan.address
        self._messages_of = messages_of
        self._sockets = sockets
        self._member = f"{NAME}:{status.channel}".encode()
        self.socket_name = socket_name("publish", status.channel, plan.address)
        self._sent = StateFile(Path(plan.state) / f"{status.channel}.sent", Sent())
        marks = self._sent.state.marks
        for mark in marks[:-1] if self._sent.flag else marks:
            self.progress.note(*mark)
        self._published = 0
        """On the present connection."""
        self._open: list[OpenReceipt] = []
        """Receipts that are waited for."""

    async def run(self, nc: Client) -> None:
        """Publish what comes, until cancelled."""
        sock = self._sockets.claim(self.socket_name, self._sent.state.cookie)
        async with kept_connection(self._address, sock) as self._bus:
            try:
                if sock is None:
                    await self._bus.join(self._member)
                    self._published = 0
                else:
                    await self._find_published()
                self._confirm()
                if sock is None:
                    self._sockets.keep(self.socket_name, self._bus.sock)
                await super().run(nc)
            except BusError:
                self.progress.restore()  # a bus that has gone may not have published the rest
                self._confirm()
                self._sockets.end(self.socket_name)
                raise

    async def _find_published(self) -> None:
        """Learn whether the last message was published."""
        sent, count = self._sent.state, await self._bus.count_published(self._member)
        if self._sent.flag and count is not None and count >= sent.count:
            self.progress.note(*sent.marks[-1])
        elif self._sent.flag and (count is None or count < sent.count - 1):
            self.report("count", f"{self.name}: the bus has lost count: a message may come twice")
        self._published = count or 0

    def _confirm(self) -> None:
        """The bus has everything so far."""
        self._open.clear()
        self.progress.save()
        self._sent.write(Sent(self._bus.cookie, self._published), flag=False)

    async def deliver(self, batch: list[Msg]) -> None:
        """Publish what these make deliverable; returns when the bus has it."""
        for msg in batch:
            await self._take(*self.feed(msg))
        for origin, items in self.due():
            await self._take(origin, items)
        await self._wait_receipts()
        if batch:
            newest = batch[-1].metadata
            self.status.behind = newest.num_pending
            self.progress.next_in_stream = self.first_held(newest.sequence.stream + 1)

    async def _take(self, origin: str, items: list[Crossing | Gap]) -> None:
        messages: list[tuple[bytes, bytes]] = []
        for item in items:
            messages += self._messages_of(self._channel, origin, item)
            if isinstance(item, Crossing):
                await self._publish(messages, origin, item.envelope.epoch, item.envelope.number)
                messages = []
        if ledger := self.ledgers.get(origin):
            if messages:
                await self._publish(messages, origin, ledger.epoch, ledger.next - 1)
            elif not items:
                self.progress.note(origin, ledger.epoch, ledger.next - 1)

    async def _publish(
        self, messages: list[tuple[bytes, bytes]], origin: str, epoch: str, number: int
    ) -> None:
        """Publish these, which deliver everything up to this number. What is stored before and
        after tells a successor what to ask the bus."""
        if max(len(self._open), len(self._sent.state.marks)) + len(messages) > _OPEN_MAX:
            await self._wait_receipts()
        self._published += len(messages)
        marks = [*self._sent.state.marks, (origin, epoch, number)]
        self._sent.write(Sent(self._sent.state.cookie, self._published, marks), flag=True)
        for key, payload in messages:
            try:
                self._open.append(await self._bus.ask_receipt(key, payload))
            except PacketRefused as refused:  # it is too long
                self._note_refused(refused)
        self._sent.clear_flag()
        self.progress.note(origin, epoch, number)

    async def _wait_receipts(self) -> None:
        """Return when the bus has published everything."""
        await self._bus.wait_receipts(self._open)
        for receipt in self._open:
            if isinstance(receipt.result, PacketRefused):
                self._note_refused(receipt.result)
        self._confirm()

    def _note_refused(self, refused: PacketRefused) -> None:
        self._published -= 1
        self.report(refused.code, f"the local bus refused a message: {refused}")
