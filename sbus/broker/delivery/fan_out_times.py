"""The time of a worker that the clients of one user take of another user's messages.

A publisher is charged for each delivery of its messages, to clients of others too. So a user whose
many clients subscribe to another's key, or make each delivery slow, would take the publisher's
time. Each pair of a publisher's and a recipient's user *owes* the CPU time of deliveries. What a
delivery takes beyond an ordinary one counts `_EXCESS_FACTOR` times more, but none counts more than
`_CHARGE_NS_MAX`: the host of a virtual machine may have taken the processor. The pair pays

    by each message of the publisher to the recipient    `fan_out_us_max`
    by the time in which the worker has nothing to do    all of it
    by any time                                          one part in `TIME_SHARE`

Time pays once for all pairs of the same recipient. Its small part is for messages that are rare,
when others keep the worker busy. Where workers share processors, messages and idle time pay only
for a worker's share of one: all workers may deliver the same message, and a worker that waits for a
processor seems to have nothing to do.

If a pair owes more than `_BURST_NS`, messages are left out (`Outbox.leave_out`) until it owes half
of that. A client that begins to miss messages costs as much as a delivery, and that is owed, too.
Each further one is only counted. Messages with few recipients, and clients of the publisher's own
user, owe nothing.

The compiled step does the same in `_fan_out.h`, with the same words. It looks at the clock once for
several deliveries, which count no more than one together.
"""

import secrets
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from sbus.broker.delivery.outbox_ledger import OutboxLedger
from sbus.broker.delivery.send_times import NS_PER_BYTE, ORDINARY_NS, TIME_SHARE

_SMALL = 8
"""Recipients of a message in one worker, for which nothing is owed."""
_BURST_NS = 5_000_000
_CHARGE_NS_MAX = _BURST_NS // 2
_OWED_NS_MAX = 4 * _BURST_NS
"""A pair never owes more."""
_KEPT_NS_MAX = 2 * _BURST_NS
"""Of the time that pays, so much is kept until a pair owes something."""
_LOOK_NS = 64_000
"""More is ordinary for a guard: its look at a process takes some 33 us."""
_EXCESS_FACTOR = 8
"""A pair with slow deliveries has at most a small part of the time that one with many has."""

# The first words, then one for each account: how much time has paid for its pairs. Then those of
# each pair.
_MESSAGE, _SLEPT_NS, _NS_PER_MESSAGE, _SMALL_FAN_OUT, _FACTOR, _SHARE, _USED_NS = range(7)
_PROCESSOR_PARTS = 1024
"""One processor, where `_SHARE` is a worker's."""
_ACCOUNTS_BITS = 10
"""Accounts whose places have the same lowest bits share the time."""
_FIRST_PAIR = _USED_NS + (1 << _ACCOUNTS_BITS)
_PAIR, _PAIR_MESSAGE, _OWED_NS, _IS_SPENT, _PAIR_WORDS = range(5)
_PAIRS_BITS = 10
_MASK = (1 << 64) - 1
_ACCOUNT_MASK = (1 << _ACCOUNTS_BITS) - 1

_Ready = TypeVar("_Ready")


class Recipient(Protocol):
    """What a route leads to: an outbox, the guard of one, or neither."""

    @property
    def outbox(self) -> OutboxLedger | None: ...

    @property
    def slot_at(self) -> int: ...

    @property
    def is_closed(self) -> bool: ...

    def deliver(self, packet: bytes, publisher_account: int) -> None: ...

    def leave_out(self, packet: bytes, publisher_account: int) -> None: ...


class FanOutTimes:
    """Of one worker, which has this share of a processor for itself. `words` is for the compiled
    step."""

    def __init__(
        self, us_per_message: int, processor_share: float = 1.0, small: int = _SMALL
    ) -> None:
        self.words = array("Q", bytes(8 * (_FIRST_PAIR + (_PAIR_WORDS << _PAIRS_BITS))))
        self.words[_SMALL_FAN_OUT] = self._small = small
        self.words[_FACTOR] = secrets.randbits(64) | 1
        """Nobody can find out which pairs share a place."""
        self.words[_SHARE] = int(processor_share * _PROCESSOR_PARTS)
        self._marked_ns = self._cpu_at_mark_ns = 0
        self.limit(us_per_message)

    def limit(self, us_per_message: int) -> None:
        """From now on a message pays for so much time."""
        self.words[_NS_PER_MESSAGE] = 1000 * us_per_message * self.words[_SHARE] // _PROCESSOR_PARTS

    def note_sleep(self, slept_ns: int) -> None:
        """The worker had nothing to do for so long."""
        self.words[_SLEPT_NS] += slept_ns * self.words[_SHARE] // _PROCESSOR_PARTS

    def sleep_in(self, poll: Callable[[float], _Ready], seconds_max: float) -> _Ready:
        """Call what sleeps until there is something to do, and note how long that was."""
        began_ns = time.monotonic_ns()
        ready = poll(seconds_max)
        self.note_sleep(time.monotonic_ns() - began_ns)
        return ready

    def deliver(
        self,
        recipients: Sequence[Recipient],
        packet: bytes,
        publisher: int,
        progress: memoryview,
        place: int,
    ) -> int:
        """Deliver a message of the user with this account, and note the delivery under way in
        `progress`, as the `place` of the message and the recipient's slot. Returns how many were
        left out, which the publisher is not to be charged for."""
        if len(recipients) > self._small:
            return self._deliver_to_many(recipients, packet, publisher, progress, place)
        for recipient in recipients:
            progress[0] = place + recipient.slot_at
            recipient.deliver(packet, publisher)
        return 0

    def _deliver_to_many(
        self,
        recipients: Sequence[Recipient],
        packet: bytes,
        publisher: int,
        progress: memoryview,
        place: int,
    ) -> int:
        words, left_out, found_for, at = self.words, 0, -1, 0
        self._mark()
        for recipient in recipients:
            progress[0] = place + recipient.slot_at
            outbox = recipient.outbox
            if outbox is None or outbox.account_place == publisher:
                recipient.deliver(packet, publisher)
                continue
            if outbox.account_place != found_for:
                words[_MESSAGE] += found_for < 0
                found_for = outbox.account_place
                at = self._find(publisher, found_for)
            make = recipient.deliver
            if at and words[at + _IS_SPENT]:
                left_out += 1
                if outbox.leave_out_likewise(packet, publisher):
                    continue
                make = recipient.leave_out
            began_ns = time.monotonic_ns()
            make(packet, publisher)
            if at:
                ordinary_ns = ORDINARY_NS + len(packet) * NS_PER_BYTE
                ordinary_ns += 0 if isinstance(recipient, OutboxLedger) else _LOOK_NS
                self._charge(at, self._time_since(began_ns, ordinary_ns), ordinary_ns)
        return left_out

    # -- what pairs owe ------------------------------------------------------------------------
    def _find(self, publisher: int, account_place: int) -> int:
        """Where this pair begins; 0 while another pair, which owes something, has its place."""
        words = self.words
        pair = publisher << 32 | account_place + 1
        index = (pair * words[_FACTOR] & _MASK) >> 64 - _PAIRS_BITS
        at = _FIRST_PAIR + _PAIR_WORDS * index
        self._pay_by_time(at)
        if words[at + _PAIR] != pair:
            if words[at + _OWED_NS]:
                return 0
            words[at + _PAIR] = pair
        if words[at + _PAIR_MESSAGE] != words[_MESSAGE]:
            words[at + _PAIR_MESSAGE] = words[_MESSAGE]
            self._pay(at, words[_NS_PER_MESSAGE])
        return at

    def _pay_by_time(self, at: int) -> None:
        words = self.words
        time_ns = words[_SLEPT_NS] + time.monotonic_ns() // TIME_SHARE
        used_at = _USED_NS + (words[at + _PAIR] - 1 & _ACCOUNT_MASK)
        unused_ns = min(time_ns - words[used_at], _KEPT_NS_MAX)
        paid_ns = min(unused_ns, words[at + _OWED_NS])
        words[used_at] = time_ns - unused_ns + paid_ns
        self._pay(at, paid_ns)

    def _pay(self, at: int, paid_ns: int) -> None:
        owed_ns = max(0, self.words[at + _OWED_NS] - paid_ns)
        self.words[at + _OWED_NS] = owed_ns
        if owed_ns <= _BURST_NS // 2:
            self.words[at + _IS_SPENT] = 0

    def _charge(self, at: int, spent_ns: int, ordinary_ns: int) -> None:
        """A delivery has taken so long."""
        spent_ns += _EXCESS_FACTOR * max(0, spent_ns - ordinary_ns)
        charge_ns = min(spent_ns, _CHARGE_NS_MAX)
        owed_ns = min(self.words[at + _OWED_NS] + charge_ns, _OWED_NS_MAX)
        self.words[at + _OWED_NS] = owed_ns
        if owed_ns > _BURST_NS:
            self.words[at + _IS_SPENT] = 1

    # -- time ----------------------------------------------------------------------------------
    def _mark(self) -> None:
        self._marked_ns, self._cpu_at_mark_ns = time.monotonic_ns(), time.thread_time_ns()

    def _time_since(self, began_ns: int, ordinary_ns: int) -> int:
        """If it is more than this, CPU time only, or less than that: see `send_times`."""
        spent_ns = time.monotonic_ns() - began_ns
        if spent_ns <= ordinary_ns:
            return spent_ns
        before_ns = self._cpu_at_mark_ns + began_ns - self._marked_ns  # at most
        self._mark()
        return max(0, self._cpu_at_mark_ns - before_ns)
