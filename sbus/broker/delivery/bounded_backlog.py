"""A backlog with its bounds: the client's own, in messages and bytes, and its user's account.

A trio memory channel applies the bound in messages. A message does not fit when its token finds no
room there; the turn that sends the message takes the token out. The messages themselves stand
beside the channel, because that counts no bytes and has one order.

An *overshoot* is what is kept beyond the client's own bounds, because its publishers were held too
late: at most the size of the log, and without tokens.

    messages = tokens in the channel + overshoot
    on the account  =  bytes + 64 * messages + overhead,  never more than it has room for

Where the age of messages is limited, what comes is kept with the time at which it came, and what
came before is as old as the limit.
"""

import time
from typing import Literal

import msgspec
import trio

from sbus.broker.delivery.backlog import Backlog
from sbus.broker.delivery.backlog_section import (
    AGING_BYTES,
    AgingMessage,
    Section,
    age_bytes,
    aging,
)
from sbus.broker.ipc.client_record import BacklogItem, BacklogRecord
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
_QUEUE, _LATEST = BacklogOrder.QUEUE, BacklogOrder.LATEST


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class BoundedBacklog(Backlog):
    """The backlog of one client, whose user has this `account`."""

    __slots__ = (
        *("_account", "_age_ms_max", "_aging_since_ms", "_bytes_max", "_counts"),
        *("_keeping_bytes", "_messages_max", "_overshoot", "_overshoot_bytes_max", "_tokens"),
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
        self._age_ms_max = 0
        """0 if there is no limit."""
        self._aging_since_ms = 0
        """When the present limit began, which what has no time of its own counts from."""
        self._keeping_bytes = _KEEPING_BYTES
        """What it takes to keep the next message."""
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
        if not self._has_room(len(packet) + self._keeping_bytes):
            receive.receive_nowait()
            return "quota"
        self._keep(packet)
        return None

    def overshoot(self, packet: bytes) -> bool:
        """Keep a message beyond the bounds, if that is not too much either."""
        reserve = self._overshoot_bytes_max
        if self.bytes + len(packet) > self._bytes_max + reserve:
            return False
        if not self._account.has_reserve(BACKLOG_BYTES, len(packet) + self._keeping_bytes, reserve):
            return False
        self._overshoot += 1
        self._keep(packet)
        return True

    def record(self) -> BacklogRecord:
        record = super().record()
        if not self._age_ms_max:
            return record
        came_ms = [it.came_ms if isinstance(it, AgingMessage) else 0 for it in record.items]
        return msgspec.structs.replace(record, came_ms=came_ms)

    def follow(self, changes: BacklogRecord) -> None:
        """The same, also beyond the bounds."""
        messages, size_bytes, overhead_bytes = self.messages, self.bytes, self.overhead_bytes
        super().follow(_with_ages(changes))
        self._count(self.messages - messages, self.bytes - size_bytes)
        self._account.count(BACKLOG_BYTES, self.overhead_bytes - overhead_bytes)
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
        packet = self._with_age(packet)
        more_bytes = len(packet) - len(old)
        overhead_bytes = age_bytes(packet) - age_bytes(old)
        if more_bytes > 0 and self.bytes + more_bytes > self._bytes_max:
            return False
        if more_bytes + overhead_bytes > 0 and not self._has_room(more_bytes + overhead_bytes):
            return False
        section.replace(packet)
        self.replaced += 1
        self.bytes += more_bytes
        self._count(0, more_bytes)
        self._account.count(BACKLOG_BYTES, overhead_bytes)
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
        before_bytes = section.overhead_bytes
        super()._index(section, count)
        self._account.count(BACKLOG_BYTES, section.overhead_bytes - before_bytes)
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
        before_bytes = section.overhead_bytes
        packet = super().pop()
        if packet is not None:
            self._count_removed(packet, section.overhead_bytes - before_bytes)
        return packet

    def drop_first(self, section: Section, order: BacklogOrder) -> bytes:
        before_bytes = section.overhead_bytes
        packet = super().drop_first(section, order)
        self._count_removed(packet, section.overhead_bytes - before_bytes)
        return packet

    def _count_removed(self, packet: bytes, overhead_bytes: int) -> None:
        self._count(-1, -len(packet))
        if overhead_bytes:
            self._account.count(BACKLOG_BYTES, overhead_bytes)
        self._release_place()

    def _release_place(self) -> None:
        """One message less is kept."""
        if self._overshoot:
            self._overshoot -= 1
        else:
            assert self._tokens is not None
            self._tokens[1].receive_nowait()

    def clear(self) -> None:
        self._count(-self.messages, -self.bytes)
        self._account.count(BACKLOG_BYTES, -self.overhead_bytes)
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

    # -- ages ----------------------------------------------------------------------------------
    def limit_age(self, age_ms_max: int) -> None:
        """From now on no message is too old that has waited for at most so long; 0 is no limit."""
        if not self._age_ms_max:
            self._aging_since_ms = _now_ms()
        self._age_ms_max = age_ms_max
        self._keeping_bytes = _KEEPING_BYTES + (AGING_BYTES if age_ms_max else 0)

    def drop_aged(self, count_max: int, *, oldest: bool = False) -> list[bytes]:
        """Drop messages that are too old: as they would be sent or, for room, the `oldest`."""
        if not self._age_ms_max:
            return []
        order = _QUEUE if oldest else self._order
        section = next((it for it in self._sections if len(it)), self._sections[0])
        came_ms_min = _now_ms() - self._age_ms_max
        dropped: list[bytes] = []
        while len(section) and self._came_ms(section.first(order)) < came_ms_min:
            if len(dropped) == count_max:
                break
            dropped.append(self.drop_first(section, order))
        return dropped

    def _came_ms(self, packet: bytes) -> int:
        return packet.came_ms if isinstance(packet, AgingMessage) else self._aging_since_ms

    def _with_age(self, packet: bytes) -> bytes:
        return aging(packet, _now_ms()) if self._age_ms_max else packet

    def _has_room(self, more: int) -> bool:
        taken = self.bytes + _KEEPING_BYTES * self.messages + self.overhead_bytes
        return self._account.has_room(BACKLOG_BYTES, more, taken)

    def _keep(self, packet: bytes) -> None:
        self._count(1, len(packet))
        if self._age_ms_max:
            packet = self._with_age(packet)
            self._sections[-1].note_age(packet)
            self._account.count(BACKLOG_BYTES, AGING_BYTES)
        self.append(packet)

    def _count(self, messages: int, size_bytes: int) -> None:
        self._account.count(BACKLOG_BYTES, size_bytes + _KEEPING_BYTES * messages)
        self._counts[IN_BACKLOG] += messages
        self._counts[IN_BACKLOG_BYTES] += size_bytes


def _with_ages(changes: BacklogRecord) -> BacklogRecord:
    """The same, with messages of known age where the times are known."""
    if not changes.came_ms and not changes.replaced_came_ms:
        return changes
    items: list[BacklogItem] = [
        aging(item, came_ms) if isinstance(item, bytes) and came_ms else item
        for item, came_ms in zip(changes.items, changes.came_ms, strict=True)
    ]
    times = changes.replaced_came_ms
    replaced = {
        number: aging(packet, came_ms) if (came_ms := times.get(number)) else packet
        for number, packet in changes.replaced.items()
    }
    return msgspec.structs.replace(changes, items=items, replaced=replaced)
