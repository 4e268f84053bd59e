"""The time of a worker that the clients of one user take of another user's messages.

A publisher is charged for each delivery of its messages, to clients of others too. So a user whose
many clients subscribe to another's key, or make each delivery slow, would take the publisher's
time. Each pair of a publisher's and a recipient's user *owes* that time, and it is paid

    by each message of the publisher to the recipient    `fan_out_us_max`
    by every pair, all the time                          one part in `_TIME_SHARE` of the time
    by every pair, while the worker sleeps               as long as it sleeps

A sleep ends when there is something to do, and not when the processor is there for it. If a pair
owes more than `_BURST_NS`, messages are left out (`Outbox.leave_out`) until it owes half of that.
The first recipients of each user, and clients of the publisher's own user, owe nothing.

The compiled step does the same in `_fan_out.h`, with the same words.
"""

import os
import secrets
import time
from array import array
from collections.abc import Sequence
from typing import Protocol

from sbus.broker.delivery.outbox import Outbox

_TIME_SHARE = 2
"""A pair may have one part in so many of a worker's time, however busy that is."""
_SMALL = 16
"""Recipients of a message, of one user in one worker, for which nothing is owed."""
_BURST_NS = 5_000_000
_OWED_NS_MAX = 2 * _BURST_NS
"""A pair never owes more."""
_DELIVERY_NS_MAX = 100_000
"""More is not charged for a delivery in Python: the process may have had to wait."""

# The first words, and those of each pair.
_MESSAGE, _SLEPT_NS, _IS_OWED, _NS_PER_MESSAGE, _SMALL_FAN_OUT, _FACTOR = range(6)
_SCHEDSTAT_FD, _WAITED_NS, _HEADER_WORDS = range(6, 9)
_PAIR, _PAIR_MESSAGE, _RECIPIENTS, _PAID_NS, _OWED_NS, _IS_SPENT, _PAIR_WORDS = range(7)
_PAIRS_BITS = 10
_SCHEDSTAT_BYTES_MAX = 80
"""Three numbers: for how long it has run and has waited, in ns, and how often."""
_MASK = (1 << 64) - 1


class Recipient(Protocol):
    """What a route leads to. Time is charged only if it is an outbox."""

    @property
    def slot_at(self) -> int: ...

    def deliver(self, packet: bytes, publisher_uid: int) -> None: ...


class ReadySource(Protocol):
    """A poller."""

    def poll(self, seconds_max: float) -> list[tuple[int, int]]: ...


class FanOutTimes:
    """Of one worker. `words` is for the compiled step."""

    def __init__(self, us_per_message: int, small: int = _SMALL) -> None:
        self.words = array("Q", bytes(8 * (_HEADER_WORDS + (_PAIR_WORDS << _PAIRS_BITS))))
        self.words[_SMALL_FAN_OUT] = self._small = small
        self.words[_SCHEDSTAT_FD] = _MASK
        self.words[_FACTOR] = secrets.randbits(64) | 1
        """Nobody can find out which pairs share a place."""
        self.limit(us_per_message)

    def limit(self, us_per_message: int) -> None:
        """From now on a message pays for so much time."""
        self.words[_NS_PER_MESSAGE] = 1000 * us_per_message

    def use_schedstat(self, fd: int) -> None:
        """Learn from this process's schedstat in /proc, which is borrowed, how long it waits for
        its processor. Until then, such a wait at the end of a sleep counts as sleep."""
        self.words[_SCHEDSTAT_FD] = fd

    def poll(self, poller: ReadySource, seconds_max: float) -> list[tuple[int, int]]:
        """As `poller.poll`, which pays."""
        if not self.words[_IS_OWED]:
            return poller.poll(seconds_max)
        began_ns = time.monotonic_ns()
        self.words[_WAITED_NS] = self._waited_ns()
        ready = poller.poll(seconds_max)
        slept_ns = time.monotonic_ns() - began_ns
        slept_ns = max(0, slept_ns - (self._waited_ns() - self.words[_WAITED_NS]))
        self.words[_SLEPT_NS] += slept_ns
        self.words[_IS_OWED] = slept_ns < _OWED_NS_MAX
        return ready

    def _waited_ns(self) -> int:
        """For how long the worker has waited for its processor so far, if that is known."""
        fd = self.words[_SCHEDSTAT_FD]
        if fd == _MASK:
            return self.words[_WAITED_NS]
        return int(os.pread(fd, _SCHEDSTAT_BYTES_MAX, 0).split()[1])

    def deliver(
        self,
        recipients: Sequence[Recipient],
        packet: bytes,
        uid: int,
        progress: memoryview,
        place: int,
    ) -> int:
        """Deliver a message of this user, and note the delivery under way in `progress`, as the
        `place` of the message and the recipient's slot. Returns how many were left out, which the
        publisher is not to be charged for."""
        if len(recipients) > self._small:
            return self._deliver_to_many(recipients, packet, uid, progress, place)
        for recipient in recipients:
            progress[0] = place + recipient.slot_at
            recipient.deliver(packet, uid)
        return 0

    def _deliver_to_many(
        self,
        recipients: Sequence[Recipient],
        packet: bytes,
        uid: int,
        progress: memoryview,
        place: int,
    ) -> int:
        words, left_out, found_for, at = self.words, 0, -1, 0
        for recipient in recipients:
            progress[0] = place + recipient.slot_at
            if not isinstance(recipient, Outbox) or recipient.uid == uid:
                recipient.deliver(packet, uid)
                continue
            if recipient.account_place != found_for:
                words[_MESSAGE] += found_for < 0
                found_for = recipient.account_place
                at = self._find(uid, found_for)
            words[at + _RECIPIENTS] += at > 0
            is_many = at and words[at + _RECIPIENTS] > self._small
            if is_many and words[at + _IS_SPENT]:
                recipient.leave_out(packet, uid)
                left_out += 1
                continue
            began_ns = time.monotonic_ns()
            recipient.deliver(packet, uid)
            if is_many:
                self._charge(at, time.monotonic_ns() - began_ns)
        return left_out

    def _find(self, uid: int, account_place: int) -> int:
        """Where this pair begins; 0 while another pair, which owes something, has its place."""
        words = self.words
        pair = uid << 32 | account_place + 1
        index = (pair * words[_FACTOR] & _MASK) >> 64 - _PAIRS_BITS
        at = _HEADER_WORDS + _PAIR_WORDS * index
        paid_ns = words[_SLEPT_NS] + time.monotonic_ns() // _TIME_SHARE
        self._pay(at, paid_ns - words[at + _PAID_NS])
        words[at + _PAID_NS] = paid_ns
        if words[at + _PAIR] != pair:
            if words[at + _OWED_NS]:
                return 0
            words[at + _PAIR] = pair
        if words[at + _PAIR_MESSAGE] != words[_MESSAGE]:
            words[at + _PAIR_MESSAGE] = words[_MESSAGE]
            words[at + _RECIPIENTS] = 0
            self._pay(at, words[_NS_PER_MESSAGE])
        return at

    def _pay(self, at: int, paid_ns: int) -> None:
        owed_ns = max(0, self.words[at + _OWED_NS] - paid_ns)
        self.words[at + _OWED_NS] = owed_ns
        if owed_ns <= _BURST_NS // 2:
            self.words[at + _IS_SPENT] = 0

    def _charge(self, at: int, spent_ns: int) -> None:
        owed_ns = min(self.words[at + _OWED_NS] + min(spent_ns, _DELIVERY_NS_MAX), _OWED_NS_MAX)
        self.words[at + _OWED_NS] = owed_ns
        self.words[_IS_OWED] = 1
        if owed_ns > _BURST_NS:
            self.words[at + _IS_SPENT] = 1
