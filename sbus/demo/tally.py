"""What the demo's clients reported, and the verdict: tables of published, due and received.

Every message is kept until the end, and a few are shown as they come.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

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
        screen.say(screen.message_line(at, self.name, len(new), key, payload))

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
    published = {publisher.name: publisher.published for publisher in publishers}
    due = {
        subscriber.name: {
            name: len(verify.expected(subscriber.pattern, messages))
            for name, messages in published.items()
        }
        for subscriber in subscribers
    }
    found = {
        subscriber.name: verify.positions(subscriber.pattern, published, subscriber.received)
        for subscriber in subscribers
    }
    good = {name: at for name, at in found.items() if at is not None}
    shared, disagreeing = verify.common_order(good)
    lines = [*publisher_table(publishers, due), "", *subscriber_table(subscribers, due, set(good))]
    lines.append("")
    for name in found.keys() - good:
        lines.append(f"WRONG: {name} did not receive what was published for it")
    for one, other in disagreeing:
        lines.append(f"WRONG: {one} and {other} saw different orders")
    if everything_arrived := len(good) == len(found) and not disagreeing:
        lines += [
            "Every subscriber received exactly what was published for it, in order.",
            f"Any two agree on the order of all they both received ({shared:,} compared).",
        ]
    return lines, everything_arrived


def publisher_table(publishers: Sequence[Publisher], due: dict[str, dict[str, int]]) -> list[str]:
    rows = [
        (its.name, len(its.published), sum(of_publisher[its.name] for of_publisher in due.values()))
        for its in publishers
    ]
    rows.append(("total", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    shown = [[name, f"{published:,}", f"{copies:,}"] for name, published, copies in rows]
    return screen.table([["publisher", "published", "to deliver"], *shown], right={1, 2})


def subscriber_table(
    subscribers: Sequence[Subscriber], due: dict[str, dict[str, int]], good: set[str]
) -> list[str]:
    rows = [["subscriber", "pattern", "due", "received", "lost", "as published"]]
    for subscriber in subscribers:
        rows.append(
            [
                subscriber.name,
                screen.printable(subscriber.pattern) or "(empty: everything)",
                f"{sum(due[subscriber.name].values()):,}",
                f"{len(subscriber.received):,}",
                subscriber.lost(),
                "yes" if subscriber.name in good else "NO",
            ]
        )
    total = sum(sum(of_publisher.values()) for of_publisher in due.values())
    received = sum(len(subscriber.received) for subscriber in subscribers)
    rows.append(["total", "", f"{total:,}", f"{received:,}", "", ""])
    return screen.table(rows, right={2, 3, 4})
