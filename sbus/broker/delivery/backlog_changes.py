"""What has changed of a backlog since it was recorded: most of a large one is copied only once.

Any of its items may have been sent meanwhile, depending on its order. The others are still in the
order in which they came, and what has come since is behind them. So ranges of the earlier items,
and the items behind them, are all that waits. Items that are equal need not be told apart.
"""

from sbus.broker.ipc.client_record import BacklogItem, BacklogRecord

_COMPARED = 1_024
"""Items that are compared at once, which takes some 10 ns each, and 100 ns one by one."""


def changes_since(before: list[BacklogItem], now: BacklogRecord) -> BacklogRecord:
    """A record of the same backlog, for a reader that has the items from before."""
    kept: list[tuple[int, int]] = []
    items = now.items
    at = found = 0
    while at < len(before) and found < len(items):
        same = _count_same(before, at, items, found)
        if same:
            kept.append((at, at + same))
        at += same + 1  # the item that differs has been sent
        found += same
    return BacklogRecord(missing=now.missing, kept=kept, items=items[found:])


def _count_same(before: list[BacklogItem], at: int, now: list[BacklogItem], found: int) -> int:
    """How many items are the same in both, from these on."""
    most = min(len(before) - at, len(now) - found)
    same, compared = 0, _COMPARED
    while compared:
        start, end = at + same, found + same
        if same + compared <= most and (
            before[start : start + compared] == now[end : end + compared]
        ):
            same += compared
        else:
            compared //= 4
    return same


def apply_changes(items: list[BacklogItem], changes: BacklogRecord) -> None:
    """Have these items, which waited before, be those that wait now. Only those that were sent or
    have come are looked at."""
    sent_to = len(items)
    for start, end in reversed(changes.kept):
        del items[end:sent_to]
        sent_to = start
    del items[:sent_to]
    items += changes.items
