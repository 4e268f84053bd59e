"""What the demo's clients reported, and the verdict: tables of published, due and received.

Every message is kept until the end, and a few are shown as they come.
"""

import random
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import click
import trio

from sbus.demo import screen, verify
from sbus.demo.clients import Carried, Lost, Ready, Report
from sbus.demo.samples import Message

PROBES = b"sbus/probe/"
"""What the recorder publishes to itself; a subscriber to everything receives it too."""
SHOW_INTERVAL_SECONDS = 0.5
"""A message of a subscriber is shown at most this often; all of them count."""


@dataclass
class Subscriber:
    name: str
    pattern: bytes
    started_at: float
    ready: trio.Event = field(default_factory=trio.Event)
    received: list[Message] = field(default_factory=list)
    losses: list[int | None] = field(default_factory=list)
    _shown: int = 0
    _shown_at: float = 0.0

    def hear(self, report: Report) -> None:
        if isinstance(report, Ready):
            self.ready.set()
        elif isinstance(report, Lost):
            self.losses.append(report.count)
        elif not report.key.startswith(PROBES):
            self.received.append((report.key, report.payload))
            self._show_now_and_then()

    def _show_now_and_then(self) -> None:
        """Show how many have come since the last time, and one of them."""
        now = time.monotonic()
        if now - self._shown_at < SHOW_INTERVAL_SECONDS:
            return
        new = self.received[self._shown :]
        self._shown, self._shown_at = len(self.received), now
        key, payload = random.choice(new)
        at = now - self.started_at
        click.echo(screen.message_line(at, self.name, len(new), key, payload))

    def lost(self) -> str:
        """What the bus reported as lost, for people; `?` where it did not know how much."""
        counted = sum(count for count in self.losses if count is not None)
        return f"{counted}+?" if None in self.losses else str(counted)


@dataclass
class Publisher:
    name: str
    published: list[Message] = field(default_factory=list)

    def hear(self, report: Report) -> None:
        if isinstance(report, Carried):
            self.published.append((report.key, report.payload))


def add_up(
    publishers: Sequence[Publisher], subscribers: Sequence[Subscriber]
) -> tuple[list[str], bool]:
    """The lines to print, and whether each subscriber received exactly what was published for it,
    in one common order."""
    everything = next(its for its in subscribers if not its.pattern)
    order = everything.received
    bad = {its.name for its in subscribers if its.received != verify.expected(its.pattern, order)}
    if not verify.is_complete(order, [its.published for its in publishers]):
        bad.add(everything.name)
    wrong = [f"WRONG: {name} did not receive what was published for it" for name in bad]
    verdict = wrong or [
        "Every subscriber received exactly what was published for it, in order.",
        "It was one order for all of them.",
    ]
    published_table = publisher_table(publishers, subscribers)
    received_table = subscriber_table(publishers, subscribers, bad)
    return [*published_table, "", *received_table, "", *verdict], not wrong


def count_due(publishers: Sequence[Publisher], subscribers: Sequence[Subscriber]) -> int:
    """How many deliveries what these publishers published makes to these subscribers."""
    return sum(
        len(verify.expected(subscriber.pattern, publisher.published))
        for subscriber in subscribers
        for publisher in publishers
    )


def publisher_table(
    publishers: Sequence[Publisher], subscribers: Sequence[Subscriber]
) -> list[str]:
    rows = [["publisher", "published", "to deliver"]]
    for its in publishers:
        due = count_due([its], subscribers)
        rows.append([its.name, f"{len(its.published):,}", f"{due:,}"])
    due = count_due(publishers, subscribers)
    published = sum(len(its.published) for its in publishers)
    rows.append(["total", f"{published:,}", f"{due:,}"])
    return screen.table(rows, right={1, 2})


def subscriber_table(
    publishers: Sequence[Publisher], subscribers: Sequence[Subscriber], bad: Set[str]
) -> list[str]:
    rows = [["subscriber", "pattern", "due", "received", "lost", "as published"]]
    for its in subscribers:
        pattern = screen.printable(its.pattern) or "(empty: everything)"
        due, received = count_due(publishers, [its]), len(its.received)
        verdict = "NO" if its.name in bad else "yes"
        rows.append([its.name, pattern, f"{due:,}", f"{received:,}", its.lost(), verdict])
    due = count_due(publishers, subscribers)
    received = sum(len(its.received) for its in subscribers)
    rows.append(["total", "", f"{due:,}", f"{received:,}", "", ""])
    return screen.table(rows, right={2, 3, 4})
