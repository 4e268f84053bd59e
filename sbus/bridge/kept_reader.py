"""Reads a durable channel such that a bridge that is killed at any instruction loses and repeats
nothing: packets stay in the socket until the spool has them, and a successor goes on with the
socket. What is published meanwhile waits there, and in the bus.

The spool's record has the socket's cookie; its flag says that the packets that were looked at last
are in the spool. So a successor takes these from the socket, and otherwise looks at them again.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from sbus.bridge.configuration import Configuration
from sbus.bridge.durable_export import DurableExport
from sbus.bridge.local_bus import ChannelReader
from sbus.bridge.status import ChannelStatus
from sbus.client.asynchronous import connect
from sbus.client.connection import Connection
from sbus.client.kept_connection import KeptConnection, kept_connection
from sbus.client.message_queue import Lost
from sbus.errors import AddressError, BusError
from sbus.protocol.packets import Message
from sbus.unix.kept_sockets import KeptSockets, socket_name

_BATCH = 256


class KeptReader(ChannelReader):
    """Of one channel."""

    def __init__(
        self,
        status: ChannelStatus,
        plan: Configuration,
        export: DurableExport,
        sockets: KeptSockets,
    ) -> None:
        channel, self._address = plan.channels[status.name], plan.address
        super().__init__(status, channel, export)
        self._export = export
        self._sockets = sockets
        self.socket_name = socket_name(
            "read", status.name, plan.address, channel.patterns, channel.when_full
        )

    async def run(self, address: str, wait_room: Callable[[str], Awaitable[object]]) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self._read()
            except (AddressError, BusError) as error:
                self._sockets.end(self.socket_name)
                self.status.is_reading = False
                self._export.report(f"{self._name} {error}", f"{self._name}: {error}")
            await asyncio.sleep(random.uniform(0.05, 1.0))

    async def _read(self) -> None:
        spool = self._export.spool
        sock = self._sockets.claim(self.socket_name, spool.reached.cookie)
        async with kept_connection(self._address, sock, sender=True) as bus:
            if sock is None:
                self._bridges.clear()
                await self._subscribe(bus)
                self._export.export_gap(self._name, None)
            else:
                self._bridges = set(spool.reached.bridges)
                self._export.go_on()
            bus.leave_packets(take_first=sock is not None and spool.is_taking)
            self.status.is_reading = True
            await self._read_on(bus, is_kept=sock is not None)

    async def _find_bridges(self, bus: Connection[Any]) -> None:
        """By another connection: on this one, the reply would wait behind what is not taken yet."""
        async with connect(self._address) as other:
            await super()._find_bridges(other)

    async def _read_on(self, bus: KeptConnection, *, is_kept: bool) -> None:
        items: list[Message | Lost] = []
        while True:
            for item in items:
                if isinstance(item, Lost):
                    await self._note_gap(bus, item)
                else:
                    self._take(item)
            if not bus.statistics().messages:
                self._export.commit(bus.cookie, self._bridges)
                bus.take_packets()
                self._export.spool.note_taken()
                if not is_kept:
                    self._sockets.keep(self.socket_name, bus.sock)
                    is_kept = True
            if self._channel.when_full == "block":
                await self._export.room.wait()
            items = await bus.receive_many(_BATCH)
