"""The time of a worker that the clients of one user take of another user's messages.

A publisher is charged for each delivery of its messages, to clients of others too. So a user whose
many clients subscribe to another's key, or make each delivery slow, would take the publisher's
time. Each pair of a publisher's and a recipient's user *owes* the CPU time of deliveries. What a
delivery takes beyond an ordinary one counts `_EXCESS_FACTOR` times more. The pair pays

    by each message of the publisher to the recipient    `fan_out_us_max`
    by the time in which the publisher does not wait     all of it

which is the time from the last delivery until the next message is received, without the time in
which backlogs are sent. If a pair owes more than `_BURST_NS`, messages are left out
(`Outbox.leave_out`) until it owes half of that. Messages with few recipients, and clients of the
publisher's own user, owe nothing.

The compiled step does the same in `_fan_out.h`, with the same words. It looks at the clock once for
several deliveries.
"""

import secrets
import time
from array import array
from collections.abc import Sequence
from typing import Protocol

from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.send_times import NS_PER_BYTE, ORDINARY_NS
from sbus.shared.log_block import TIME_MASK

_SMALL = 8
"""Recipients of a message in one worker, for which nothing is owed."""
_BURST_NS = 5_000_000
_OWED_NS_MAX = 2 * _BURST_NS
"""A pair never owes more."""
_EXCESS_FACTOR = 8
"""A pair with slow deliveries has at most a small part of the time that one with many has."""

# The first words, and those of each pair.
_MESSAGE, _BACKLOGS_NS, _NS_PER_MESSAGE, _SMALL_FAN_OUT, _FACTOR, _HEADER_WORDS = range(6)
_PAIR, _PAIR_MESSAGE, _PAID_NS, _OWED_NS, _IS_SPENT, _PAIR_WORDS = range(6)
_PAIRS_BITS = 10
_MASK = (1 << 64) - 1


class Recipient(Protocol):
    """What a route leads to. Time is charged only if it is an outbox."""

    @property
    def slot_at(self) -> int: ...

    def deliver(self, packet: bytes, publisher_uid: int) -> None: ...


class FanOutTimes:
    """Of one worker. `words` is for the compiled step."""

    def __init__(self, us_per_message: int, small: int = _SMALL) -> None:
        self.words = array("Q", bytes(8 * (_HEADER_WORDS + (_PAIR_WORDS << _PAIRS_BITS))))
        self.words[_SMALL_FAN_OUT] = self._small = small
        self.words[_FACTOR] = secrets.randbits(64) | 1
        """Nobody can find out which pairs share a place."""
        self.limit(us_per_message)

    def limit(self, us_per_message: int) -> None:
        """From now on a message pays for so much time."""
        self.words[_NS_PER_MESSAGE] = 1000 * us_per_message

    def note_backlog(self, spent_ns: int) -> None:
        """Sending from a backlog has taken this long. It pays for nothing: while one user's
        backlogs are sent, others wait."""
        self.words[_BACKLOGS_NS] += spent_ns

    def deliver(
        self,
        recipients: Sequence[Recipient],
        packet: bytes,
        uid: int,
        received_us: int,
        progress: memoryview,
        place: int,
    ) -> int:
        """Deliver a message of this user, of which the time may have its lowest bits only, and note
        the delivery under way in `progress`, as the `place` of the message and the recipient's
        slot. Returns how many were left out, which the publisher is not to be charged for."""
        if len(recipients) > self._small:
            return self._deliver_to_many(recipients, packet, uid, received_us, progress, place)
        for recipient in recipients:
            progress[0] = place + recipient.slot_at
            recipient.deliver(packet, uid)
        return 0

    def _deliver_to_many(
        self,
        recipients: Sequence[Recipient],
        packet: bytes,
        uid: int,
        received_us: int,
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
                at = self._find(uid, found_for, received_us)
            began_ns = time.thread_time_ns()
            if at and words[at + _IS_SPENT]:
                recipient.leave_out(packet, uid)
                left_out += 1
            else:
                recipient.deliver(packet, uid)
            if at:
                ordinary_ns = ORDINARY_NS + len(packet) * NS_PER_BYTE
                self._charge(at, time.thread_time_ns() - began_ns, ordinary_ns)
        return left_out

    def _find(self, uid: int, account_place: int, received_us: int) -> int:
        """Where this pair begins; 0 while another pair, which owes something, has its place."""
        words = self.words
        pair = uid << 32 | account_place + 1
        index = (pair * words[_FACTOR] & _MASK) >> 64 - _PAIRS_BITS
        at = _HEADER_WORDS + _PAIR_WORDS * index
        now_ns = time.monotonic_ns()
        now_us = now_ns // 1000
        received_ns = 1000 * (now_us - (now_us - received_us & TIME_MASK))
        self._pay(at, received_ns - words[_BACKLOGS_NS] - words[at + _PAID_NS])
        words[at + _PAID_NS] = now_ns - words[_BACKLOGS_NS]
        if words[at + _PAIR] != pair:
            if words[at + _OWED_NS]:
                return 0
            words[at + _PAIR] = pair
        if words[at + _PAIR_MESSAGE] != words[_MESSAGE]:
            words[at + _PAIR_MESSAGE] = words[_MESSAGE]
            self._pay(at, words[_NS_PER_MESSAGE])
        return at

    def _pay(self, at: int, paid_ns: int) -> None:
        owed_ns = max(0, self.words[at + _OWED_NS] - max(0, paid_ns))
        self.words[at + _OWED_NS] = owed_ns
        if owed_ns <= _BURST_NS // 2:
            self.words[at + _IS_SPENT] = 0

    def _charge(self, at: int, spent_ns: int, ordinary_ns: int) -> None:
        """A delivery has taken so long."""
        self.words[at + _PAID_NS] = time.monotonic_ns() - self.words[_BACKLOGS_NS]
        spent_ns += _EXCESS_FACTOR * max(0, spent_ns - ordinary_ns)
        owed_ns = min(self.words[at + _OWED_NS] + spent_ns, _OWED_NS_MAX)
        self.words[at + _OWED_NS] = owed_ns
        if owed_ns > _BURST_NS:
            self.words[at + _IS_SPENT] = 1
