"""The time of a worker that `send` takes, and what of it is the fault of a client.

A client decides how long a `send` to it lasts: the kernel runs the filter that the client attached
to its socket, and wakes all that watch the socket. An ordinary send takes a microsecond or two, and
one with a filter up to 0.3 s. To read the CPU clock is a system call, so first the other clock is
read. It also shows when the process had to wait for its processor, which is nobody's fault, and
often happens in the `send` that wakes another process. So if sends took too long, it is found out
how much of that was CPU time, from what that was at a *mark*, at most a millisecond before:

    CPU time of the sends >= CPU time since the mark - time from the mark to the first of them

If that was too much, sends to the same users are *timed* for `TIME_SHARE` times as long. What a
timed send takes beyond an ordinary one is charged to the recipient's user:

    charged in any time  <=  a burst + one part in `TIME_SHARE` of that time + one send
    not charged, because it was not timed  <=  one part in `TIME_SHARE` + one look at the clock

A send that would exceed this is not made: `SendTimeSpent` is raised, and the message is treated as
if the client's socket were full. The compiled step looks at the clock in the same way, after
sixteen sends or a large one, and leaves timed ones to Python.

A look at a client's process in /proc is always timed: it takes some 33 us, and up to 30 ms if the
process has many groups.
"""

import time
from array import array
from collections.abc import Callable
from errno import ETIME
from socket import MSG_DONTWAIT, socket
from typing import TypeVar

from sbus.shared.worker_statistics import SLOW_SENDS, WorkerStatistics

TIME_SHARE = 20
"""One part of so many of a worker's time may go into what sends to one user take too long."""
_BURST_NS = 10_000_000
"""So much of it at once."""
ORDINARY_NS = 16_000
"""CPU time that is not charged: several times what a send takes that wakes a process."""
_LOOK_NS = 250_000
"""CPU time of a look that is not charged: more than it takes for a process with a hundred groups,
also on a busy machine."""
_SLOW_NS = 100_000
"""From which on a send is suspect that is not timed."""
_MARK_NS = 1_000_000
NS_PER_BYTE = 2
"""Many times what copying takes."""

_Result = TypeVar("_Result")


class SendTimeSpent(BlockingIOError):
    """Sends to this user have taken too long: there is no time for one now."""

    def __init__(self) -> None:
        super().__init__(ETIME, "sends to this user have taken too long")


class SendTimes:
    """Of the sends to each user's clients in one worker, by the places of so many accounts."""

    def __init__(self, accounts: int, statistics: WorkerStatistics) -> None:
        self._statistics = statistics
        self.timed_until_ns = array("Q", bytes(8 * accounts))
        """By `time.monotonic_ns`; 0 where sends are not timed."""
        self._paid_until_ns = array("Q", bytes(8 * accounts))
        self._marked_ns = self._cpu_at_mark_ns = self.mark_due_ns = 0

    def due_ns(self, place: int) -> int:
        """When there is time for the next send to this user."""
        return self._paid_until_ns[place] - TIME_SHARE * _BURST_NS

    def mark(self, now_ns: int) -> None:
        """Note the CPU time so far. Due once in `MARK_NS` before sends that are not timed."""
        self._cpu_at_mark_ns = time.thread_time_ns()
        self._marked_ns = now_ns
        self.mark_due_ns = now_ns + _MARK_NS

    def suspect(self, place: int, began_ns: int, slow_ns: int) -> None:
        """A send that was not timed took longer than this. Time sends to this user from now on if
        that was CPU time."""
        before_ns = self._cpu_at_mark_ns + began_ns - self._marked_ns  # at most
        now_ns = time.monotonic_ns()
        self.mark(now_ns)
        spent_ns = self._cpu_at_mark_ns - before_ns
        if spent_ns > slow_ns:
            until_ns = now_ns + TIME_SHARE * spent_ns
            self.timed_until_ns[place] = max(self.timed_until_ns[place], until_ns)

    def send(self, place: int, send: Callable[[bytes, int], int], packet: bytes) -> int:
        """Make a timed send to this user, if there is time for it."""
        ordinary_ns = ORDINARY_NS + len(packet) * NS_PER_BYTE
        return self._time(place, ordinary_ns, lambda: send(packet, MSG_DONTWAIT))

    def look(self, place: int, look: Callable[[], _Result]) -> _Result:
        """Look at a process of this user's, if there is time for it; SendTimeSpent if not."""
        return self._time(place, _LOOK_NS, look)

    def _time(self, place: int, ordinary_ns: int, call: Callable[[], _Result]) -> _Result:
        now_ns = time.monotonic_ns()
        if now_ns < self.due_ns(place):
            raise SendTimeSpent
        began_ns = time.thread_time_ns()
        try:
            return call()
        finally:
            self.charge(place, time.thread_time_ns() - began_ns - ordinary_ns, now_ns)

    def charge(self, place: int, excess_ns: int, now_ns: int) -> None:
        """A timed send took so much longer than an ordinary one; a negative number: shorter."""
        if excess_ns > 0:
            self._statistics.counts[SLOW_SENDS] += 1
            until_ns = max(self._paid_until_ns[place], now_ns) + TIME_SHARE * excess_ns
            self._paid_until_ns[place] = until_ns
            self.timed_until_ns[place] = max(self.timed_until_ns[place], until_ns)
        elif self.timed_until_ns[place] <= now_ns:
            self.timed_until_ns[place] = 0


class TimedSocket:
    """A client's socket, for its outbox; `place` is that of its user's account."""

    __slots__ = ("_place", "_send", "_sock", "_timed_until_ns", "_times")

    def __init__(self, sock: socket, place: int, times: SendTimes) -> None:
        self._sock = sock
        self._send = sock.send
        self._place = place
        self._times = times
        self._timed_until_ns = times.timed_until_ns

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, packet: bytes) -> int:
        """As the socket's, without waiting; SendTimeSpent if the user's time for sends is spent."""
        if self._timed_until_ns[self._place]:
            return self._times.send(self._place, self._send, packet)
        began_ns = time.monotonic_ns()
        if began_ns > self._times.mark_due_ns:
            self._times.mark(began_ns)
        sent = self._send(packet, MSG_DONTWAIT)
        slow_ns = _SLOW_NS + len(packet) * NS_PER_BYTE
        if time.monotonic_ns() - began_ns > slow_ns:
            self._times.suspect(self._place, began_ns, slow_ns)
        return sent
