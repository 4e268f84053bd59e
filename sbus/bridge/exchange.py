"""Where each message goes: from the local bus to the links, and from a link to the bus and to the
other links. Without input or output.

What a link brings is put in order by the ledger of its channel and origin. What the ledger delivers
goes to the local bus, and on to every other link that exports the channel, unless the origin itself
publishes there. A message of the own origin is dropped, so a loop ends where it began.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from sbus.bridge.configuration import Configuration
from sbus.bridge.envelope import Claim, Crossing, Envelope, encode_claim
from sbus.bridge.ledger import RETIRED_MAX, Gap, Ledger
from sbus.protocol.packets import Message
from sbus.unix.script_names import ScriptNames

ORIGINS_MAX = 4_096
"""Whose messages a channel has had; others are refused, as anybody can invent one."""


BUS = ""
"""In a way, in place of a link: the local bus."""


class Port(Protocol):
    """A link as the exchange sees it: it takes what is to be sent, or counts it as given up."""

    name: str
    exports: frozenset[str]
    room: asyncio.Event
    """Set while there is room."""

    def send(self, crossing: Crossing) -> None: ...

    def beat(self, channel: str, origin: str, envelope: Envelope) -> None: ...


class Deliver(Protocol):
    """The local bus as the exchange sees it."""

    def __call__(self, channel: str, origin: str, item: Crossing | Gap) -> None: ...


class Numbers:
    """Those of the messages that this bus exports in one channel."""

    def __init__(self) -> None:
        self.last = 0
        self.begin()

    def begin(self) -> None:
        """Begin a new epoch: nobody knows how many messages are missing."""
        self.epoch = os.urandom(8).hex()
        self.last = 0

    def skip(self, count: int | None) -> None:
        """So many messages are missing, or nobody knows how many."""
        if count is None:
            self.begin()
        else:
            self.last += count


class Exchange:
    """All of one bridge."""

    def __init__(
        self, plan: Configuration, deliver: Deliver, report: Callable[[str, str], None]
    ) -> None:
        """`report` gets what is wrong, and a key by which it is told once."""
        self.plan = plan
        self.ports: list[Port] = []
        self.numbers = {name: Numbers() for name in plan.channels}
        self.ledgers: dict[str, dict[str, Ledger[Crossing]]] = {name: {} for name in plan.channels}
        self.looped = 0
        """Messages of the own origin that came back."""
        self._deliver = deliver
        self._report = report
        self._own_epochs: deque[str] = deque(maxlen=RETIRED_MAX)
        """Earlier ones."""
        self._scripts = ScriptNames()
        self._claims: dict[tuple[int, int, int], str] = {}

    # -- from the local bus --------------------------------------------------------------------
    def export(self, channel: str, message: Message) -> None:
        """A client of the local bus has published this."""
        numbers = self.numbers[channel]
        numbers.last += 1
        envelope = Envelope(numbers.epoch, numbers.last, self.plan.origin, self.claim_of(message))
        crossing = Crossing(channel, self.plan.origin, envelope, message.key, message.payload)
        for port in self.ports:
            if channel in port.exports:
                port.send(crossing)

    def export_gap(self, channel: str, count: int | None) -> None:
        """The local bus has lost messages of the channel on their way to this bridge."""
        if count is None:
            self._own_epochs.append(self.numbers[channel].epoch)
        self.numbers[channel].skip(count)

    def relay(self, crossing: Crossing) -> None:
        """Another bridge has published this on the local bus, and its origin with it."""
        self.arrived(None, crossing, time.monotonic())

    def claim_of(self, message: Message) -> str:
        sender = message.sender
        assert sender is not None
        who = (sender.client, sender.pid, sender.uid)  # another bus counts its clients, too
        claim = self._claims.get(who)
        if claim is None:
            if len(self._claims) >= ORIGINS_MAX:
                self._claims.clear()
            program = _program(sender.pid)
            shown = self._scripts.name(sender.client, sender.pid, program) or program
            text = shown.decode(errors="backslashreplace")
            claim = encode_claim(Claim(self.plan.host, sender.uid, text))
            self._claims[who] = claim
        return claim

    # -- from a link ---------------------------------------------------------------------------
    def arrived(self, port: Port | None, crossing: Crossing, now: float) -> None:
        """A link has brought a message, or, without a port, the local bus itself."""
        envelope = crossing.envelope
        ledger = self._ledger(crossing.channel, crossing.origin, envelope.epoch)
        if ledger is not None:
            way = (port.name if port else BUS, envelope.via)
            given = ledger.feed(way, envelope.epoch, envelope.number, crossing, now)
            self._pass_on(port, crossing.channel, crossing.origin, ledger, given, port is None)

    def beaten(self, port: Port, channel: str, origin: str, beat: Envelope, now: float) -> bool:
        """A link has told the number of the last message; returns whether the origin is new."""
        is_new = origin not in self.ledgers[channel]
        ledger = self._ledger(channel, origin, beat.epoch)
        if ledger is None:
            return False
        is_new = is_new or ledger.epoch != beat.epoch
        given = ledger.heartbeat((port.name, beat.via), beat.epoch, beat.number, now)
        self._pass_on(port, channel, origin, ledger, given)
        return is_new

    def _ledger(self, channel: str, origin: str, epoch: str) -> Ledger[Crossing] | None:
        if origin == self.plan.origin:
            self._note_own(channel, epoch)
            return None
        ledgers = self.ledgers[channel]
        ledger = ledgers.get(origin)
        if ledger is None and len(ledgers) < ORIGINS_MAX:
            ledger = ledgers[origin] = Ledger()
        if ledger is None:
            self._report(f"full {channel}", f"{channel}: too many origins, {origin} is not heard")
        elif epoch in ledger.retired:
            self._report(
                f"origin {origin}",
                f"two bridges have the origin {origin}, or an earlier run of it is still heard; "
                "if there are two: set bridge.origin on one of them",
            )
        return ledger

    def _note_own(self, channel: str, epoch: str) -> None:
        self.looped += 1
        if epoch not in (self.numbers[channel].epoch, *self._own_epochs):
            self._report(
                f"origin {self.plan.origin}",
                f"another bridge has the origin {self.plan.origin} of this one, or an earlier run "
                "of this one is still heard; if it is another: set bridge.origin on one of them",
            )

    def _pass_on(
        self,
        port: Port | None,
        channel: str,
        origin: str,
        ledger: Ledger[Crossing],
        given: list[Crossing | Gap],
        is_known: bool = False,
    ) -> None:
        """`is_known`: the local bus has it already."""
        for item in given:
            if not is_known:
                self._deliver(channel, origin, item)
            if isinstance(item, Gap):
                continue
            for other in self._transit_ports(port, channel, origin, ledger):
                envelope = msgspec.structs.replace(item.envelope, via=self.plan.origin)
                other.send(msgspec.structs.replace(item, envelope=envelope))

    def _transit_ports(
        self, port: Port | None, channel: str, origin: str, ledger: Ledger[Crossing]
    ) -> list[Port]:
        if len(self.ports) == 1 and port is not None:
            return []
        return [
            other
            for other in self.ports
            if other is not port
            and channel in other.exports
            and self._passes_on(origin, ledger, other)
        ]

    def _passes_on(self, origin: str, ledger: Ledger[Crossing], port: Port) -> bool:
        """Whether to send there what comes from elsewhere. Of several bridges that could, the first
        by name does: two that did would each wait for what both have missed."""
        own, vias = self.plan.origin, [via for name, via in ledger.ways if name == port.name]
        return len(vias) < len(ledger.ways) and not any(it == origin or it < own for it in vias)

    # -- each second ---------------------------------------------------------------------------
    def tick(self, now: float) -> None:
        """Give up silent ways, and tell the links the last numbers."""
        for channel, ledgers in self.ledgers.items():
            for origin, ledger in ledgers.items():
                self._pass_on(None, channel, origin, ledger, ledger.expire(now))
        for port in self.ports:
            for channel in port.exports:
                self.beat(port, channel)

    def beat(self, port: Port, channel: str) -> None:
        """Tell a link the last numbers of a channel."""
        numbers = self.numbers[channel]
        own = self.plan.origin
        port.beat(channel, own, Envelope(numbers.epoch, numbers.last, own))
        for origin, ledger in self.ledgers[channel].items():
            if self._passes_on(origin, ledger, port):
                port.beat(channel, origin, Envelope(ledger.epoch, ledger.next - 1, own))


def _program(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read(64).removesuffix(b"\n")
    except OSError:
        return b""
