"""The window of a worker: how much of the ordered log may wait for it.

`ordered_log` says why there is one. Here is how it is applied: the words of a worker say how far it
has walked and what it declared, and the words of a user's account what that user has appended.

All functions run under the lock.
"""

from sbus.shared.log_share import LogShare
from sbus.shared.shared_memory import (
    ALIVE,
    LOG_CONTENDERS,
    LOG_CURSOR,
    LOG_END,
    LOG_ENTRIES,
    LOG_ENTRY_BYTES,
    LOG_ROUND,
    LOG_SHARE,
    LOG_START,
    LOG_WAITERS,
    LOG_WALKED,
    LOG_WINDOW,
    WORDS_PER_WORKER,
    WORKER_WORDS,
)

MODEST_PART = 4
"""A user that has appended less than this part of a window for a worker since that last had nothing
to walk need not wait with the users that flood it."""


def base_of(worker: int) -> int:
    """Where the words of a worker begin."""
    return WORKER_WORDS + worker * WORDS_PER_WORKER


def weight_of(words: memoryview, at: int, size: int, entries: int) -> int:
    """What so many log entries of this size count for in a window, in bytes."""
    return max(size, entries * words[at + LOG_ENTRY_BYTES])


def lag_of(words: memoryview, at: int) -> int:
    """What is destined to a worker beyond its shared cursor, as it counts in its window."""
    cursor: int = words[at + LOG_CURSOR]
    end: int = words[at + LOG_END]
    if cursor >= end:
        return 0
    entries = words[at + LOG_ENTRIES] - words[at + LOG_WALKED]
    return weight_of(words, at, end - max(cursor, words[at + LOG_START]), entries)


def parts_of(words: memoryview, mask: int, size: int, entries: int) -> int:
    """Into how many log blocks to divide one of this size: each destination should walk one in half
    a window."""
    parts = 1
    mask &= words[ALIVE]
    while mask:
        bit = mask & -mask
        at = base_of(bit.bit_length() - 1)
        part_max = max(words[at + LOG_WINDOW] // 2, 1)
        parts = max(parts, (weight_of(words, at, size, entries) + part_max - 1) // part_max)
        mask ^= bit
    return parts


def late_destination(words: memoryview, mask: int, share: LogShare) -> int | None:
    """A destination that lags too far behind for this user, or None."""
    while mask:
        bit = mask & -mask
        worker = bit.bit_length() - 1
        at = base_of(worker)
        lag = lag_of(words, at)
        window = words[at + LOG_WINDOW]
        if lag and (words[at + LOG_SHARE] or words[at + LOG_WAITERS] or lag > window):
            allowed = words[at + LOG_SHARE] or window // MODEST_PART
            if lag > 2 * window or appended_bytes(words, worker, share) >= allowed:
                return worker
        mask ^= bit
    return None


def appended_bytes(words: memoryview, worker: int, share: LogShare) -> int:
    """What a user has appended for a worker in its present round."""
    at = base_of(worker)
    return share.appended_bytes(
        worker, words[at + LOG_ROUND], words[at + LOG_SHARE], words[at + LOG_WINDOW]
    )


def begin_round(words: memoryview, at: int, share: int) -> None:
    words[at + LOG_ROUND] += 1
    words[at + LOG_SHARE] = share
    words[at + LOG_CONTENDERS] = 0
