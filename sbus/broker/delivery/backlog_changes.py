"""What has changed of a backlog since it was recorded: most of a large one is copied only once.

Any of its items may have been sent meanwhile, depending on its order. The others are still in the
order in which they came, and what has come since is behind them or has taken the place of one. So
ranges of the earlier items, what has replaced some of them, and the items behind them are all that
waits. Items that are equal, and came at the same time if that is known, need not be told apart.
"""

from collections.abc import Sequence

from sbus.broker.delivery.backlog_section import key_of
from sbus.broker.ipc.client_record import BacklogItem, BacklogRecord

_COMPARED_MAX = 1_024
"""Items that are compared at once, which takes some 10 ns each, and 100 ns one by one."""


def changes_since(
    record: BacklogRecord, now: BacklogRecord, *, by_key: bool = False
) -> BacklogRecord:
    """A record of the same backlog, for a reader that has the items of an earlier `record`. With
    `by_key`, messages may have taken the place of others."""
    before = record.items
    kept: list[tuple[int, int]] = []
    replaced: dict[int, bytes] = {}
    replaced_came_ms: dict[int, int] = {}
    items = now.items
    at = found = 0
    while at < len(before) and found < len(items):
        same = _count_same(before, at, items, found)
        if record.came_ms and now.came_ms:
            same = min(same, _count_same(record.came_ms, at, now.came_ms, found))
        start, at, found = at, at + same, found + same
        newer = _newer(before, at, items, found) if by_key else None
        if newer is not None:
            replaced[at] = newer
            if now.came_ms:
                replaced_came_ms[at] = now.came_ms[found]
            at, found = at + 1, found + 1
        if kept and kept[-1][1] == start:
            kept[-1] = (kept[-1][0], at)
        elif at > start:
            kept.append((start, at))
        if newer is None:
            at += 1  # the item that differs has been sent
    return BacklogRecord(
        missing=now.missing,
        kept=kept,
        replaced=replaced,
        items=items[found:],
        came_ms=now.came_ms[found:],
        replaced_came_ms=replaced_came_ms,
        sorted=now.sorted,
    )


def _newer(before: list[BacklogItem], at: int, now: list[BacklogItem], found: int) -> bytes | None:
    """The message that has the place of an earlier one with the same key, if there is one."""
    if at == len(before) or found == len(now):
        return None
    old, new = before[at], now[found]
    if isinstance(old, bytes) and isinstance(new, bytes) and key_of(old) == key_of(new):
        return new
    return None


def _count_same(before: Sequence[object], at: int, now: Sequence[object], found: int) -> int:
    """How many items are the same in both, from these on."""
    most = min(len(before) - at, len(now) - found)
    same, compared, grows = 0, 1, True
    while compared:
        start, end = at + same, found + same
        if same + compared <= most and (
            before[start : start + compared] == now[end : end + compared]
        ):
            same += compared
            compared = min(4 * compared, _COMPARED_MAX) if grows else compared
        else:
            grows = False
            compared //= 4
    return same


def apply_changes(items: list[BacklogItem], changes: BacklogRecord) -> None:
    """Have these items, which waited before, be those that wait now. Only those that were sent or
    have come are looked at."""
    for number, packet in changes.replaced.items():
        items[number] = packet
    sent_to = len(items)
    for start, end in reversed(changes.kept):
        del items[end:sent_to]
        sent_to = start
    del items[:sent_to]
    items += changes.items
