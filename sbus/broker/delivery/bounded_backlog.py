"""A backlog with its bounds: the client's own, in messages and bytes, and its user's account.

A trio memory channel applies the bound in messages. A message does not fit when its token finds no
room there; the turn that sends the message takes the token out. The messages themselves stand
beside the channel, because that counts no bytes and has one order.

An *overshoot* is what is kept beyond the client's own bounds, because its publishers were held too
late: at most the size of the log, and without tokens.

    messages = tokens in the channel + overshoot
    on the account  =  bytes + 64 * messages + index,  never more than it has room for
"""

from typing import Literal

import trio

from sbus.broker.delivery.backlog import Backlog
from sbus.broker.delivery.backlog_section import Section
from sbus.broker.ipc.client_record import BacklogRecord
from sbus.limits import Limits
from sbus.protocol.controls import BacklogOrder
from sbus.shared.accounts import BACKLOG_BYTES, Account
from sbus.shared.worker_statistics import (
    IN_BACKLOG,
    IN_BACKLOG_BYTES,
    REPLACED,
    REPLACED_BYTES,
    WorkerStatistics,
)

_KEEPING_BYTES = 64
"""What it takes to keep a message besides its bytes, for the account."""
_INDEXED_PER_UNIT = 2
"""Messages: sorting one takes some 2 us."""
_LATEST = BacklogOrder.LATEST


class BoundedBacklog(Backlog):
    """The backlog of one client, whose user has this `account`."""

    __slots__ = (
        *("_account", "_bytes_max", "_counts", "_messages_max", "_overshoot"),
        *("_overshoot_bytes_max", "_tokens"),
    )

    def __init__(
        self, order: BacklogOrder, limits: Limits, account: Account, statistics: WorkerStatistics
    ) -> None:
        super().__init__(order)
        self._account = account
        self._counts = statistics.counts
        self._messages_max = limits.backlog_messages_max
        self._bytes_max = limits.backlog_bytes_max
        self._overshoot_bytes_max = limits.log_bytes
        self._overshoot = 0
        self._tokens: (
            tuple[trio.MemorySendChannel[None], trio.MemoryReceiveChannel[None]] | None
        ) = None
        """Opened with the first message that waits."""

    def offer(self, packet: bytes) -> Literal["hard", "quota"] | None:
        """Keep a message, or return the bound that does not allow it: the client's own, or that of
        its user's account."""
        if self._order is _LATEST and self._replace(packet):
            return None
        if self.bytes + len(packet) > self._bytes_max:
            return "hard"
        if self._tokens is None:
            self._tokens = trio.open_memory_channel[None](self._messages_max)
        send, receive = self._tokens
        try:
            send.send_nowait(None)
        except trio.WouldBlock:
            return "hard"
        if not self._has_room(len(packet) + _KEEPING_BYTES):
            receive.receive_nowait()
            return "quota"
        self._keep(packet)
        return None

    def overshoot(self, packet: bytes) -> bool:
        """Keep a message beyond the bounds, if that is not too much either."""
        reserve = self._overshoot_bytes_max
        if self.bytes + len(packet) > self._bytes_max + reserve:
            return False
        if not self._account.has_reserve(BACKLOG_BYTES, len(packet) + _KEEPING_BYTES, reserve):
            return False
        self._overshoot += 1
        self._keep(packet)
        return True

    def follow(self, changes: BacklogRecord) -> None:
        """The same, also beyond the bounds."""
        messages, size_bytes = self.messages, self.bytes
        super().follow(changes)
        self._count(self.messages - messages, self.bytes - size_bytes)
        self._overshoot = max(0, self.messages - self._messages_max)
        self._take_tokens(self.messages - self._overshoot)

    def _take_tokens(self, count: int) -> None:
        """Have so many tokens in the channel."""
        if self._tokens is None:
            if not count:
                return
            self._tokens = trio.open_memory_channel[None](self._messages_max)
        send, receive = self._tokens
        taken = send.statistics().current_buffer_used
        for _ in range(taken, count):
            send.send_nowait(None)
        for _ in range(count, taken):
            receive.receive_nowait()

    def is_half_free(self) -> bool:
        """Whether at most half of the messages and of the bytes that it may keep are in it."""
        return (
            not self._overshoot
            and 2 * self.messages <= self._messages_max
            and 2 * self.bytes <= self._bytes_max
        )

    def _replace(self, packet: bytes) -> bool:
        """Have a message in the place of the one with its key, if there is one and the difference
        has room."""
        section = self._sections[-1]
        old = section.replaceable(packet)
        if old is None:
            return False
        more_bytes = len(packet) - len(old)
        if more_bytes > 0 and not (
            self.bytes + more_bytes <= self._bytes_max and self._has_room(more_bytes)
        ):
            return False
        section.replace(packet)
        self.replaced += 1
        self.bytes += more_bytes
        self._count(0, more_bytes)
        self._count_replaced(old)
        return True

    def index_for(self, cost_max: int) -> int:
        """Make what is needed to find the next message by size or key; returns the cost."""
        if not self.unindexed:
            return 0
        return -(-self.index(_INDEXED_PER_UNIT * cost_max) // _INDEXED_PER_UNIT)

    def _index(self, section: Section, count: int) -> int:
        """The same, while the account has room; without it, those messages are sent oldest first,
        and are not replaced."""
        if not self._has_room(section.index_bytes_max(self._order, count)):
            return 0
        before_bytes = section.index_bytes
        super()._index(section, count)
        self._account.count(BACKLOG_BYTES, section.index_bytes - before_bytes)
        return count

    def _forget_replaced(self, packet: bytes) -> None:
        super()._forget_replaced(packet)
        self._count(-1, -len(packet))
        self._count_replaced(packet)
        self._release_place()

    def _count_replaced(self, packet: bytes) -> None:
        self._counts[REPLACED] += 1
        self._counts[REPLACED_BYTES] += len(packet)

    def pop(self) -> bytes | None:
        section = self._sections[0]
        before_bytes = section.index_bytes
        packet = super().pop()
        if packet is not None:
            self._count(-1, -len(packet))
            if before_bytes:
                self._account.count(BACKLOG_BYTES, section.index_bytes - before_bytes)
            self._release_place()
        return packet

    def _release_place(self) -> None:
        """One message less is kept."""
        if self._overshoot:
            self._overshoot -= 1
        else:
            assert self._tokens is not None
            self._tokens[1].receive_nowait()

    def clear(self) -> None:
        self._count(-self.messages, -self.bytes)
        self._account.count(BACKLOG_BYTES, -self.index_bytes)
        super().clear()
        self._overshoot = 0
        if self._tokens is not None:
            for end in self._tokens:
                end.close()
            self._tokens = None

    def check_invariants(self) -> None:
        super().check_invariants()
        tokens = 0 if self._tokens is None else self._tokens[0].statistics().current_buffer_used
        assert self.messages == tokens + self._overshoot

    def _has_room(self, more: int) -> bool:
        taken = self.bytes + _KEEPING_BYTES * self.messages + self.index_bytes
        return self._account.has_room(BACKLOG_BYTES, more, taken)

    def _keep(self, packet: bytes) -> None:
        self._count(1, len(packet))
        self.append(packet)

    def _count(self, messages: int, size_bytes: int) -> None:
        self._account.count(BACKLOG_BYTES, size_bytes + _KEEPING_BYTES * messages)
        self._counts[IN_BACKLOG] += messages
        self._counts[IN_BACKLOG_BYTES] += size_bytes
