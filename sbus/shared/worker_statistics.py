"""Statistics: what went through each worker, in memory that everybody can read.

A worker counts in an array of its own, which costs as little as counting can, and copies it to its
place in the shared memory before it sleeps and about every millisecond while it is busy. So whoever
asks reads without waiting for anybody, and what is read is one consistent state of that worker but
for a copy that happens at the same time. A worker that takes a place over goes on from what stands
there: the counters of a place only grow.

    accepted = delivered + discarded + undelivered + backlog      in messages and in bytes

`delivered` is not counted, it is what is left. This module does not know when something is counted.
"""

from array import array
from collections.abc import Sequence

from sbus.protocol.codes import DISCARD_REASONS, PACKET_CODES

# Places of a worker's counters.
MESSAGES_IN = 0
BYTES_IN = 1
ACCEPTED = 2
ACCEPTED_BYTES = 3
DISCARDED_BYTES = 4
UNDELIVERED = 5
UNDELIVERED_BYTES = 6
QUEUED = 7
"""A gauge, as is the next: what stands in backlogs now."""
QUEUED_BYTES = 8
STALLS = 9
ROUTE_LOOKUPS = 10
ROUTE_MISSES = 11
LATENCY_SUM_US = 12
DISCARDED = 13
"""From here on one for each reason, in the order of `DISCARD_REASONS`."""
REFUSED = DISCARDED + len(DISCARD_REASONS)
"""Likewise for each code in `PACKET_CODES`."""
LATENCY = REFUSED + len(PACKET_CODES)
"""Likewise for each bucket."""

_FIRST_BOUND_BITS = 4
_FIRST_BOUND_US = 1 << _FIRST_BOUND_BITS
LATENCY_BOUNDS_US: Sequence[int] = tuple(1 << bits for bits in range(_FIRST_BOUND_BITS, 25))
"""16 us to 16.8 s, each twice the one before."""
WORDS = LATENCY + len(LATENCY_BOUNDS_US) + 1

_REFUSED_AT = {code: REFUSED + number for number, code in enumerate(PACKET_CODES)}
_DISCARDED_AT = {reason: DISCARDED + number for number, reason in enumerate(DISCARD_REASONS)}


def statistics_words(workers: int) -> int:
    """Shared words that the counters of all workers take."""
    return WORDS * workers


class WorkerStatistics:
    """What one worker counts; `shared` is its place, None where nobody reads."""

    __slots__ = ("_shared", "counts")

    def __init__(self, shared: memoryview | None = None) -> None:
        self._shared = shared
        self.counts = array("Q", bytes(8 * WORDS) if shared is None else shared.tobytes())

    def share(self) -> None:
        """Let others see what was counted so far."""
        if self._shared is not None:
            self._shared[:] = memoryview(self.counts)

    def record_refusal(self, code: str) -> None:
        """A packet was refused or ignored, or its client disconnected, for this."""
        self.counts[_REFUSED_AT[code]] += 1

    def record_discard(self, reason: str, size_bytes: int) -> None:
        """A message was discarded for this reason."""
        counts = self.counts
        counts[_DISCARDED_AT[reason]] += 1
        counts[DISCARDED_BYTES] += size_bytes

    def record_latency(self, latency_us: int, deliveries: int) -> None:
        """So many deliveries took so long."""
        counts = self.counts
        bucket = LATENCY
        if latency_us > _FIRST_BOUND_US:
            bucket += (latency_us - 1).bit_length() - _FIRST_BOUND_BITS
            if bucket >= WORDS:
                bucket = WORDS - 1
        counts[bucket] += deliveries
        counts[LATENCY_SUM_US] += latency_us * deliveries


def counters_of(words: memoryview, worker: int) -> memoryview:
    """The place of one worker among the shared words of all."""
    return words[worker * WORDS : (worker + 1) * WORDS]


def reap(words: memoryview, worker: int) -> None:
    """Count what is left in the backlogs of a dead worker as undelivered."""
    shared = counters_of(words, worker)
    shared[UNDELIVERED] += shared[QUEUED]
    shared[UNDELIVERED_BYTES] += shared[QUEUED_BYTES]
    shared[QUEUED] = shared[QUEUED_BYTES] = 0
