"""What the demo knows of each of its publishers and subscribers: what it has told so far.

Keeps everything, for the reckoning at the end, and shows a little of it as it comes. Knows neither
the processes nor the bus.
"""

import random
import time
from dataclasses import dataclass, field

import trio

from sbus.demo import screen
from sbus.demo.pipeline import PROBES
from sbus.demo.reports import Lost, Published, Ready, Received, Report
from sbus.demo.samples import Message

SHOW_INTERVAL_SECONDS = 0.5
"""A subscriber's messages are shown at most this often; all of them count."""


@dataclass
class Subscriber:
    name: str
    pattern: bytes
    ready: trio.Event = field(default_factory=trio.Event)
    received: list[Message] = field(default_factory=list)
    losses: list[int | None] = field(default_factory=list)
    _shown: int = 0
    _shown_at: float = 0.0

    def hear(self, started_at: float, report: Report) -> None:
        if isinstance(report, Ready):
            self.ready.set()
        elif isinstance(report, Lost):
            self.losses.append(report.count)
        elif isinstance(report, Received) and not report.key.startswith(PROBES):
            self.received.append((report.key, report.payload))
            self._show_now_and_then(started_at)

    def _show_now_and_then(self, started_at: float) -> None:
        """Show how many have come since the last time, and one of them."""
        now = time.monotonic()
        if now - self._shown_at < SHOW_INTERVAL_SECONDS:
            return
        new = self.received[self._shown :]
        self._shown, self._shown_at = len(self.received), now
        key, payload = random.choice(new)
        screen.say(screen.message_line(now - started_at, self.name, len(new), key, payload))

    def lost(self) -> str:
        """What the bus reported as lost, for people; `?` where it did not know how much."""
        counted = sum(count for count in self.losses if count is not None)
        return f"{counted}+?" if None in self.losses else str(counted)


@dataclass
class Publisher:
    name: str
    published: list[Message] = field(default_factory=list)

    def hear(self, report: Report) -> None:
        if isinstance(report, Published):
            self.published.append((report.key, report.payload))
