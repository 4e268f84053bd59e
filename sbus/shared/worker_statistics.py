"""Statistics of each worker, in memory that every process can read.

A worker counts in an array of its own, which is cheap, and copies it to its place in the shared
memory before it sleeps and about every millisecond while it is busy. Reading needs no lock and sees
one consistent state of that worker, unless the copy is made at the same time. A new worker goes on
with the counters of its place, so they only grow.

    accepted = delivered + dropped + replaced + undelivered + backlog   in messages and in bytes

`delivered` is not counted: it follows from this equation.
"""

from array import array
from collections.abc import Mapping, Sequence

from sbus.protocol.codes import DROP_REASONS, PACKET_CODES

# Places of a worker's counters.
MESSAGES_IN = 0
BYTES_IN = 1
ACCEPTED = 2
ACCEPTED_BYTES = 3
DROPPED_BYTES = 4
UNDELIVERED = 5
UNDELIVERED_BYTES = 6
IN_BACKLOG = 7
"""A gauge, like the next one: what is in backlogs now."""
IN_BACKLOG_BYTES = 8
STALLS = 9
ROUTE_LOOKUPS = 10
ROUTE_MISSES = 11
LATENCY_SUM_US = 12
SLOW_SENDS = 13
"""Timed sends that were charged to the recipient's user."""
REPLACED = 14
"""By newer messages of the same key, in backlogs."""
REPLACED_BYTES = 15
DROPPED = 16
"""From here on, one for each reason, in the order of `DROP_REASONS`."""
REFUSED = DROPPED + len(DROP_REASONS)
"""Likewise for each code in `PACKET_CODES`."""
LATENCY = REFUSED + len(PACKET_CODES)
"""Likewise for each bucket."""

_FIRST_BOUND_BITS = 4
_FIRST_BOUND_US = 1 << _FIRST_BOUND_BITS
LATENCY_BOUNDS_US: Sequence[int] = tuple(1 << bits for bits in range(_FIRST_BOUND_BITS, 25))
"""16 us to 16.8 s, each twice the previous one."""
WORDS = LATENCY + len(LATENCY_BOUNDS_US) + 1

_REFUSED_AT = {code: REFUSED + number for number, code in enumerate(PACKET_CODES)}
DROPPED_AT = {reason: DROPPED + number for number, reason in enumerate(DROP_REASONS)}
DROPPED_FAN_OUT = DROPPED_AT["fan-out"]


_COUNTERS: Mapping[str, int] = {
    "messages_in": MESSAGES_IN,
    "bytes_in": BYTES_IN,
    "accepted": ACCEPTED,
    "accepted_bytes": ACCEPTED_BYTES,
    "dropped_bytes": DROPPED_BYTES,
    "undelivered": UNDELIVERED,
    "undelivered_bytes": UNDELIVERED_BYTES,
    "stalls": STALLS,
    "route_lookups": ROUTE_LOOKUPS,
    "route_misses": ROUTE_MISSES,
    "latency_sum_us": LATENCY_SUM_US,
    "slow_sends": SLOW_SENDS,
    "replaced": REPLACED,
    "replaced_bytes": REPLACED_BYTES,
    **{f"dropped.{reason}": at for reason, at in DROPPED_AT.items()},
    **{f"refused.{code}": at for code, at in _REFUSED_AT.items()},
    **{f"latency.{bound}": LATENCY + at for at, bound in enumerate(LATENCY_BOUNDS_US)},
    "latency.more": LATENCY + len(LATENCY_BOUNDS_US),
}
"""Where each counter is, by its name in records."""


def statistics_words(workers: int) -> int:
    """Shared words of the counters of all workers."""
    return WORDS * workers


class WorkerStatistics:
    """The counters of one worker; `shared` is their place, None where nobody reads them."""

    __slots__ = ("counts", "shared")

    def __init__(self, shared: memoryview | None = None) -> None:
        self.shared = shared
        self.counts = array("Q", bytes(8 * WORDS) if shared is None else shared.tobytes())

    def share(self) -> None:
        """Copy the counters to the shared memory."""
        if self.shared is not None:
            self.shared[:] = memoryview(self.counts)

    def add(self, counters: Mapping[str, int]) -> None:
        """Go on with what another worker has counted; unknown counters are ignored."""
        for name, count in counters.items():
            if name in _COUNTERS:
                self.counts[_COUNTERS[name]] += count

    def record_refusal(self, code: str) -> None:
        """Count a packet that was refused or ignored, or whose client was disconnected."""
        self.counts[_REFUSED_AT[code]] += 1

    def record_drop(self, reason: str, size_bytes: int) -> None:
        """Count a dropped message."""
        counts = self.counts
        counts[DROPPED_AT[reason]] += 1
        counts[DROPPED_BYTES] += size_bytes

    def record_latency(self, latency_us: int, deliveries: int) -> None:
        """Count deliveries that took this long."""
        counts = self.counts
        bucket = LATENCY
        if latency_us > _FIRST_BOUND_US:
            bucket += (latency_us - 1).bit_length() - _FIRST_BOUND_BITS
            if bucket >= WORDS:
                bucket = WORDS - 1
        counts[bucket] += deliveries
        counts[LATENCY_SUM_US] += latency_us * deliveries


def named_counters(shared: memoryview) -> dict[str, int]:
    """What a worker has counted, by names that do not change, as `add` takes it. What is in
    backlogs is left out: a worker that restores these counts it."""
    return {name: shared[at] for name, at in _COUNTERS.items() if shared[at]}


def counters_of(words: memoryview, worker: int) -> memoryview:
    """The place of one worker among the shared words of all."""
    return words[worker * WORDS : (worker + 1) * WORDS]


def reap(words: memoryview, worker: int) -> None:
    """Count what is left in the backlogs of a dead worker as undelivered."""
    shared = counters_of(words, worker)
    shared[UNDELIVERED] += shared[IN_BACKLOG]
    shared[UNDELIVERED_BYTES] += shared[IN_BACKLOG_BYTES]
    shared[IN_BACKLOG] = shared[IN_BACKLOG_BYTES] = 0
