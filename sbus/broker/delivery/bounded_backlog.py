"""A backlog with its bounds: the client's own, in messages and bytes, and its user's account.

The bound in messages is the capacity of a trio memory channel, which carries one token for each
message; the messages themselves stand beside it, because a channel counts no bytes and keeps one
order. An *overshoot* is what is kept beyond the client's own bounds, because its publishers were
too late to be held back: at most the size of the log, and without tokens.

    messages = tokens in the channel + overshoot
    on the account  =  bytes + 64 * messages,  never more than it has room for

This module does not know why a message is kept, nor what becomes of one that there is no room for.
"""

from collections.abc import Callable
from typing import Literal

import trio

from sbus.broker.delivery.backlog import Backlog, Gap, Reply
from sbus.limits import Limits
from sbus.protocol.controls import BacklogOrder
from sbus.shared.accounts import BACKLOG_BYTES, Account
from sbus.shared.worker_statistics import QUEUED, QUEUED_BYTES, WorkerStatistics

_KEEPING_BYTES = 64
"""What it takes to keep a message besides its bytes, for the account."""


class BoundedBacklog:
    """One client's. `on_quota` is called when its user's `account` has no room for a message."""

    __slots__ = (
        *("_account", "_bytes_max", "_counts", "_full", "_messages_max", "_on_quota", "_overshoot"),
        *("_overshoot_bytes_max", "_tokens", "row"),
    )

    def __init__(
        self,
        order: BacklogOrder,
        limits: Limits,
        account: Account,
        statistics: WorkerStatistics,
        on_quota: Callable[[], None],
    ) -> None:
        self.row = Backlog(order)
        self._account = account
        self._counts = statistics.counts
        self._on_quota = on_quota
        self._messages_max = limits.backlog_messages_max
        self._bytes_max = limits.backlog_bytes_max
        self._overshoot_bytes_max = limits.log_bytes
        self._overshoot = 0
        self._tokens: (
            tuple[trio.MemorySendChannel[None], trio.MemoryReceiveChannel[None]] | None
        ) = None
        self._full = False
        """No token fits: a message that is dropped need not find that out anew."""

    def take(self, packet: bytes) -> Literal["", "hard", "quota"]:
        """Keep a message; where the bounds do not allow it, which: the client's own or its
        user's."""
        if self._full or self.row.bytes + len(packet) > self._bytes_max:
            return "hard"
        if not self._account_has_room(packet):
            return "quota"
        if self._tokens is None:
            self._tokens = trio.open_memory_channel[None](self._messages_max)
        try:
            self._tokens[0].send_nowait(None)
        except trio.WouldBlock:
            self._full = True
            return "hard"
        self._append(packet)
        return ""

    def overshoot(self, packet: bytes) -> bool:
        """Keep a message beyond the bounds, if that is not too much either."""
        reserve = self._overshoot_bytes_max
        if self.row.bytes + len(packet) > self._bytes_max + reserve:
            return False
        if not self._account.has_reserve(BACKLOG_BYTES, len(packet) + _KEEPING_BYTES, reserve):
            return False
        self._overshoot += 1
        self._append(packet)
        return True

    def is_half_free(self) -> bool:
        """Whether at most half of what may be kept is."""
        return (
            not self._overshoot
            and 2 * self.row.messages <= self._messages_max
            and 2 * self.row.bytes <= self._bytes_max
        )

    def pop(self, first: bytes | Gap | Reply) -> None:
        """Drop what `row.first` returned."""
        self.row.pop()
        if not isinstance(first, bytes):
            return
        self._count(-1, -len(first))
        if self._overshoot:
            self._overshoot -= 1
        elif self._tokens is not None:
            self._tokens[1].receive_nowait()
            self._full = False

    def clear(self) -> None:
        """Drop everything; nothing is to be kept any more."""
        self._count(-self.row.messages, -self.row.bytes)
        self.row.clear()
        self._overshoot = 0
        if self._tokens is not None:
            for end in self._tokens:
                end.close()
            self._tokens = None

    def check_invariants(self) -> None:
        """AssertionError where the formulas above do not hold."""
        self.row.check_invariants()
        tokens = 0 if self._tokens is None else self._tokens[0].statistics().current_buffer_used
        assert self.row.messages == tokens + self._overshoot

    def _append(self, packet: bytes) -> None:
        self.row.append(packet)
        self._count(1, len(packet))

    def _count(self, messages: int, size_bytes: int) -> None:
        self._account.count(BACKLOG_BYTES, size_bytes + _KEEPING_BYTES * messages)
        self._counts[QUEUED] += messages
        self._counts[QUEUED_BYTES] += size_bytes

    def _charge(self) -> int:
        return self.row.bytes + _KEEPING_BYTES * self.row.messages

    def _account_has_room(self, packet: bytes) -> bool:
        if self._account.has_room(BACKLOG_BYTES, len(packet) + _KEEPING_BYTES, self._charge()):
            return True
        self._on_quota()
        return False
