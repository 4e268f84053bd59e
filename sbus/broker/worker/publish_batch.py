"""A publish batch: consecutive messages of one client that get their place in the order together.

The session gathers it from the client's pending packets, the sequencer gives its messages their
place and delivers them. Messages at its end that cannot have a place now are *put off*: their
packets go back to the session and are gathered anew later, so that no route that waits has to be
kept current.
"""

import time
from collections.abc import Callable

from sbus.broker.worker.router import Route

_COST_PER_BYTE = 1 / 4096
_COST_PER_SECOND = 250_000
"""Matching a new key costs what it takes: there may be many patterns that match almost."""

Message = tuple[bytes, bytes, Route]
"""A packet, its key and its route."""


class PublishBatch:
    """Messages in the order in which the client sent them."""

    __slots__ = ("deliveries", "delivery_bytes", "lookup_cost", "messages", "put_off")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.put_off: tuple[Message, ...] = ()
        """Messages that followed, and have to wait."""
        self.deliveries = 0
        """To clients of this worker, one for each message and recipient."""
        self.delivery_bytes = 0
        self.lookup_cost = 0
        """The cost of finding the routes."""

    @property
    def cost(self) -> int:
        """The cost of publishing the messages, and of finding their routes."""
        copying_cost = int(self.delivery_bytes * _COST_PER_BYTE)
        return self.lookup_cost + len(self.messages) + self.deliveries + copying_cost

    def add(self, packet: bytes, key: bytes, route: Route) -> None:
        """Append a message."""
        self.messages.append((packet, key, route))
        self.deliveries += route.fan_out
        self.delivery_bytes += len(packet) * route.fan_out

    def put_off_from(self, index: int) -> None:
        """Put off the message at this index and all behind it."""
        put_off = self.messages[index:]
        for packet, _, route in put_off:
            self.deliveries -= route.fan_out
            self.delivery_bytes -= len(packet) * route.fan_out
        del self.messages[index:]
        self.put_off = (*put_off, *self.put_off)

    def reroute(
        self, find_route: Callable[[bytes], Route], seconds_max: float, *, whole: bool = False
    ) -> None:
        """Look up the routes again, because subscriptions have changed; with `whole`, those of
        messages that were put off too. Messages for which the time does not suffice are put off."""
        messages, put_off = self.messages, self.put_off
        if whole:
            messages, put_off = [*messages, *put_off], ()
        self.messages = []
        self.deliveries = self.delivery_bytes = 0
        began_at = now = time.perf_counter()
        for packet, key, _ in messages:
            self.add(packet, key, find_route(key))
            now = time.perf_counter()
            if now - began_at > seconds_max:
                break
        self.charge_lookup(now - began_at)
        self.put_off = (*messages[len(self.messages) :], *put_off)

    def charge_lookup(self, seconds: float) -> None:
        """Count time that was spent on finding routes."""
        self.lookup_cost += int(seconds * _COST_PER_SECOND)
