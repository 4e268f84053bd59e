"""`sbusctl ping`: the round trip of a message through the bus, reported as ping(8) does.

A ping is an ordinary message that the client sends to itself. Each has a key of its own, so that a
late one is not mistaken for the next. Times are of `time.monotonic`, in seconds.
"""

import math
import os
import time
from dataclasses import dataclass

from sbus.cli.terminal.standard_output import write_json, write_line
from sbus.client.blocking import Connection
from sbus.protocol.keys import Dialect
from sbus.protocol.packets import Message
from sbus.protocol.text import to_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PingPlan:
    """How many pings (None for no end) of what payload. `interval_seconds` is the time between two
    departures, unless a ping takes longer. After `timeout_seconds` a ping counts as lost."""

    count: int | None
    interval_seconds: float
    size_bytes: int
    timeout_seconds: float
    as_json: bool = False


class RoundTrips:
    """Statistics of round-trip times, in constant memory."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self.shortest_seconds = math.inf
        self.longest_seconds = 0.0
        self._sum = 0.0
        self._sum_of_squares = 0.0

    def add(self, seconds: float) -> None:
        """Add one round trip."""
        self.received += 1
        self.shortest_seconds = min(self.shortest_seconds, seconds)
        self.longest_seconds = max(self.longest_seconds, seconds)
        self._sum += seconds
        self._sum_of_squares += seconds * seconds

    def times_ms(self) -> dict[str, float]:
        """The statistics by their names in ping(8); empty if no ping came back."""
        if not self.received:
            return {}
        average = self._sum / self.received
        deviation = math.sqrt(max(0.0, self._sum_of_squares / self.received - average**2))
        times = (self.shortest_seconds, average, self.longest_seconds, deviation)
        names = ("min", "avg", "max", "mdev")
        return {name: seconds * 1000 for name, seconds in zip(names, times, strict=True)}

    def describe(self, address: str, elapsed_seconds: float) -> str:
        """The summary: two lines, and a third if any ping came back."""
        lost = 100 * (self.sent - self.received) / self.sent if self.sent else 0.0
        lines = [
            f"--- {address} ping statistics ---",
            f"{self.sent} packets transmitted, {self.received} received, {lost:g}% packet loss, "
            f"time {elapsed_seconds * 1000:.0f}ms",
        ]
        if times := self.times_ms():
            shown = "/".join(f"{milliseconds:.3f}" for milliseconds in times.values())
            lines.append(f"rtt {'/'.join(times)} = {shown} ms")
        return "\n".join(lines)

    def figures(self, elapsed_seconds: float) -> dict[str, float]:
        """The summary for programs."""
        times = {f"rtt_ms_{name}": value for name, value in self.times_ms().items()}
        counts = {"sent": self.sent, "received": self.received}
        return {**counts, "elapsed_ms": elapsed_seconds * 1000, **times}


def measure_round_trips(bus: Connection[Message], dialect: Dialect, plan: PingPlan) -> RoundTrips:
    """Ping and print as planned. The summary is printed even if this is interrupted."""
    address = to_text(os.fsencode(bus.address))
    trips = RoundTrips()
    prefix = dialect.separator.join((b"sbusctl", b"ping", os.urandom(16).hex().encode(), b""))
    bus.subscribe(prefix)
    bus.sync(timeout_seconds=plan.timeout_seconds)
    if not plan.as_json:
        write_line(f"PING {address}: {plan.size_bytes} bytes")
    began = time.monotonic()
    try:
        while plan.count is None or trips.sent < plan.count:
            departure = began + trips.sent * plan.interval_seconds
            time.sleep(max(0.0, departure - time.monotonic()))
            _ping_once(bus, prefix, plan, trips)
    finally:
        elapsed = time.monotonic() - began
        if plan.as_json:
            write_json(trips.figures(elapsed))
        else:
            write_line(f"\n{trips.describe(address, elapsed)}")
    return trips


def _ping_once(bus: Connection[Message], prefix: bytes, plan: PingPlan, trips: RoundTrips) -> None:
    trips.sent += 1
    key = prefix + b"%d" % trips.sent
    departure = time.monotonic()
    seconds = None
    try:
        bus.publish(key, bytes(plan.size_bytes), timeout_seconds=plan.timeout_seconds)
        _receive(bus, key, departure + plan.timeout_seconds)
    except TimeoutError:
        pass
    else:
        seconds = time.monotonic() - departure
        trips.add(seconds)
    _show(plan, trips.sent, seconds)


def _show(plan: PingPlan, number: int, seconds: float | None) -> None:
    """A line about one ping; `seconds` is None if it did not come back in time."""
    if plan.as_json:
        write_json({"seq": number, "rtt_ms": None if seconds is None else seconds * 1000})
    elif seconds is None:
        write_line(f"no answer: seq={number} time>{plan.timeout_seconds:g} s")
    else:
        write_line(f"{plan.size_bytes} bytes: seq={number} time={seconds * 1000:.3f} ms")


def _receive(bus: Connection[Message], key: bytes, until: float) -> None:
    while bus.receive(timeout_seconds=max(0.0, until - time.monotonic())).key != key:
        pass
