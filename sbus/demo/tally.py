"""The demo's reckoning: tables of what was published, due and received, and the verdict.

Pure: turns what the publishers and subscribers told into lines and a yes or no.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sbus.demo import screen, verify
from sbus.demo.cast import Publisher, Subscriber


class Tally(NamedTuple):
    lines: list[str]
    everything_arrived: bool


def add_up(publishers: Sequence[Publisher], subscribers: Sequence[Subscriber]) -> Tally:
    """Whether each subscriber received exactly what was published for it, in one common order."""
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
    lines = [
        *publisher_table(publishers, due),
        "",
        *subscriber_table(subscribers, due, set(good)),
        "",
        *(
            f"WRONG: {name} did not receive what was published for it"
            for name in found.keys() - good
        ),
        *(f"WRONG: {one} and {other} saw different orders" for one, other in disagreeing),
    ]
    if everything := len(good) == len(found) and not disagreeing:
        lines += [
            "Every subscriber received exactly what was published for it, in order.",
            f"Any two agree on the order of all they both received ({shared:,} compared).",
        ]
    return Tally(lines, everything)


def publisher_table(publishers: Sequence[Publisher], due: dict[str, dict[str, int]]) -> list[str]:
    rows = [["publisher", "published", "to deliver"]]
    for publisher in publishers:
        copies = sum(by_publisher[publisher.name] for by_publisher in due.values())
        rows.append([publisher.name, f"{len(publisher.published):,}", f"{copies:,}"])
    total = sum(len(publisher.published) for publisher in publishers)
    copies = sum(sum(by_publisher.values()) for by_publisher in due.values())
    rows.append(["total", f"{total:,}", f"{copies:,}"])
    return screen.table(rows, right=frozenset({1, 2}))


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
    total = sum(sum(by_publisher.values()) for by_publisher in due.values())
    received = sum(len(subscriber.received) for subscriber in subscribers)
    rows.append(["total", "", f"{total:,}", f"{received:,}", "", ""])
    return screen.table(rows, right=frozenset({2, 3, 4}))
