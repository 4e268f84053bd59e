"""A link to another bus of this host, without NATS: the same, with its socket in place of a server.

What is sent there is published there, each message behind a note of its origin. What is published
there comes back as from an origin of its own, or, if it has such a note, from the one that the note
names. So buses may be joined in a chain. They are meant to be a tree: in a ring a message may come
twice, by each way with numbers of its own, but it does not go round.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from sbus.bridge.configuration import Link
from sbus.bridge.envelope import Crossing, Envelope
from sbus.bridge.exchange import Exchange, Numbers
from sbus.bridge.ledger import Gap
from sbus.bridge.local_bus import ChannelReader, LocalPublisher, publishing
from sbus.bridge.own_keys import NAME
from sbus.bridge.status import LinkStatus
from sbus.errors import BusError, ConfigurationError, reason_of
from sbus.protocol.packets import Message

PAUSE_SECONDS: Final = 2.0
_ERRORS: Final = (BusError, ConfigurationError)


class Uplink:
    """One link; `name` is that of the configuration. A `Port` of the exchange."""

    def __init__(
        self,
        name: str,
        plan: Link,
        exchange: Exchange,
        wanted: Callable[[str], None],
        report: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self.plan = plan
        self.exports = frozenset(plan.exports)
        self._status = LinkStatus(name, plan.exports, plan.imports, wanted=set(plan.exports))
        self.import_room = asyncio.Event()
        self._exchange = exchange
        self._report = report
        self._origin = f"{exchange.plan.origin[:31]}-{name}"
        """What is published there has these numbers, which only this bridge gives."""
        self._numbers = {channel: Numbers() for channel in plan.imports}
        self._next: dict[tuple[str, str], tuple[str, int]] = {}
        """By channel and origin, of what is sent: the epoch, and the number that comes next."""
        channels = {
            channel: msgspec.structs.replace(exchange.plan.channels[channel], claims=True)
            for channel in {*plan.exports, *plan.imports}
        }
        self._publisher = LocalPublisher(channels, report)
        self.room = self._publisher.room
        self._readers = [
            ChannelReader(self._publisher.statuses[channel], channels[channel], self)
            for channel in plan.imports
        ]
        for channel in plan.exports:
            wanted(channel)
        for reader in self._readers:
            reader.wanted.set()

    @property
    def status(self) -> LinkStatus:
        self._status.is_reading = all(reader.status.is_reading for reader in self._readers)
        self._status.waiting_bytes = self._publisher.waiting_bytes
        return self._status

    def send(self, crossing: Crossing) -> None:
        """Publish it there, unless too much waits already."""
        channel, envelope = crossing.channel, crossing.envelope
        if self._is_full:
            plan = self._exchange.plan.channels[channel]
            self._status.give_up(plan.pattern_of(crossing.key))
            return
        self._tell_missing(channel, crossing.origin, envelope.epoch, envelope.number - 1)
        self._next[channel, crossing.origin] = (envelope.epoch, envelope.number + 1)
        self._publisher.deliver(channel, crossing.origin, crossing)
        self._status.sent += 1

    def beat(self, channel: str, origin: str, envelope: Envelope) -> None:
        """Tell there what is missing at the end."""
        if not self._is_full:
            self._tell_missing(channel, origin, envelope.epoch, envelope.number)

    @property
    def _is_full(self) -> bool:
        return self._publisher.waiting_bytes > self.plan.buffer_bytes_max

    def _tell_missing(self, channel: str, origin: str, epoch: str, last: int) -> None:
        """Tell there what was not sent, up to this number."""
        known, expected = self._next.get((channel, origin), (epoch, last + 1))
        if known != epoch:
            self._publisher.deliver(channel, origin, Gap(known, expected, None))
            expected = 1
        if last >= expected:
            gap = Gap(epoch, expected, last + 1 - expected)
            self._publisher.deliver(channel, origin, gap)
        self._next[channel, origin] = (epoch, max(expected, last + 1))

    # -- what is published there ---------------------------------------------------------------
    def export(self, channel: str, message: Message) -> None:
        numbers = self._numbers[channel]
        numbers.last += 1
        claim = self._exchange.claim_of(message)
        envelope = Envelope(numbers.epoch, numbers.last, self._origin, claim)
        self.relay(Crossing(channel, self._origin, envelope, message.key, message.payload))

    def export_gap(self, channel: str, count: int | None) -> None:
        self._numbers[channel].skip(count)
        self._tell_last(channel)

    def _tell_last(self, channel: str) -> None:
        numbers, now = self._numbers[channel], asyncio.get_running_loop().time()
        beat = Envelope(numbers.epoch, numbers.last, self._origin)
        self._exchange.beaten(self, channel, self._origin, beat, now)

    def relay(self, crossing: Crossing) -> None:
        self._status.received += 1
        self._exchange.arrived(self, crossing, asyncio.get_running_loop().time())

    # -- the connection ------------------------------------------------------------------------
    async def run(self) -> None:
        """Be connected until cancelled."""
        while True:
            try:
                await self._serve()
            except* _ERRORS as group:
                self._status.state = f"down: {reason_of(group)}"
                self._report(
                    f"{self.name} {self._status.state}", f"link {self.name} is {self._status.state}"
                )
            await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.5))

    async def _serve(self) -> None:
        address, name = self.plan.uplink, f"{NAME}:{self._exchange.plan.origin}"[:64]
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            bus = await stack.enter_async_context(publishing(address, name))
            self._status.sessions += 1
            self._status.state = "up"
            for channel, numbers in self._numbers.items():
                numbers.begin()
                self._tell_last(channel)
            self._report(f"{self.name} up {self._status.sessions}", f"link {self.name} is up")
            tasks.create_task(self._publisher.run(bus))
            tasks.create_task(self._publisher.watch(bus))
            for reader in self._readers:
                tasks.create_task(reader.run(address, lambda _: self.import_room.wait()))
