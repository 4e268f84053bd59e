"""The ledger of one outbox, and which messages it drops without a decision.

    accepted = delivered + dropped + replaced + backlog + undelivered        at any time

After a drop, messages that would be dropped for the same reason are only counted, until something
is sent or the client chooses anew: no `send` is tried for them. So a client that does not read
costs publishers little. The compiled step counts them, too, in `new_drops`. These are *settled*,
and become a gap of the backlog, before anything else is put there.

Messages for a closed outbox are counted in the same way, as undelivered.
"""

from typing import Self

import msgspec

from sbus.broker.delivery.backpressure import NOBODY
from sbus.broker.delivery.bounded_backlog import BoundedBacklog
from sbus.broker.delivery.origin import Origin
from sbus.broker.ipc.client_record import BacklogRecord
from sbus.compiled import OutboxRecord
from sbus.protocol.controls import BacklogOrder
from sbus.shared.accounts import DROPPED, Account
from sbus.shared.client_slots import ClientSlot
from sbus.shared.worker_statistics import (
    ACCEPTED,
    ACCEPTED_BYTES,
    DROPPED_AT,
    DROPPED_FAN_OUT,
    UNDELIVERED,
    UNDELIVERED_BYTES,
    WorkerStatistics,
)

NO_SIZE = (1 << 63) - 1
"""Of no message."""
_AGED_PER_UNIT = 2
"""Messages that are too old: dropping one takes some 2 us."""
_AGED_FOR_ROOM_MAX = 64
_NOTHING = BacklogRecord()


class OutboxStatistics(msgspec.Struct, frozen=True):
    """The ledger of one client, in messages, and the bytes of its backlog."""

    accepted: int
    delivered: int
    dropped: int
    undelivered: int
    backlog: int
    backlog_bytes: int
    replaced: int = 0
    """By newer messages of the same key, in the backlog."""


class OutboxLedger(OutboxRecord):
    """What an outbox needs to count for its `backlog`; `account` is its user's."""

    __slots__ = (
        *("_account", "_backlog", "_drop_reason", "_dropped", "_origin", "_slot", "_statistics"),
        "_undelivered",
    )

    def __init__(
        self, backlog: BoundedBacklog, account: Account, statistics: WorkerStatistics
    ) -> None:
        self._backlog = backlog
        self._account = account
        self.account_place = account.place
        self._slot: ClientSlot | None = None
        self.slot_at = 0
        self.wants_sender = False
        self._statistics = statistics
        self._dropped: dict[str, int] = {}
        self._drop_reason = ""
        """Of `new_drops`, which are counted by `drop_counter`."""
        self.drop_counter = self.new_drops = 0
        self.accepted = self.delivered_bytes = 0
        self._undelivered = 0
        self.decide_anew()

    @property
    def outbox(self) -> Self:
        """As a recipient."""
        return self

    def use_slot(self, slot: ClientSlot) -> None:
        """From now on a successor of this worker learns from the slot what is lost with this."""
        self._slot, self.slot_at = slot, slot.at

    def use_origin(self, origin: Origin) -> None:
        """This says what is being delivered, for a client that wants to know the sender."""
        self._origin = origin

    def _with_sender(self, packet: bytes) -> bytes:
        """A message as such a client gets it, which is larger than what was accepted."""
        prefix = self._origin.prefix()
        self._statistics.counts[ACCEPTED_BYTES] += len(prefix)
        return prefix + packet

    def _share_waiting(self) -> None:
        """Share how many messages wait, or were dropped and the client was not told yet."""
        if self._slot is not None:
            backlog = self._backlog
            self._slot.waiting = backlog.messages + backlog.in_gaps + self.new_drops

    @property
    def dropped(self) -> dict[str, int]:
        """Messages that were dropped, by reason."""
        self._settle_drops()
        return self._dropped

    @property
    def replaced(self) -> int:
        return self._backlog.replaced

    @replaced.setter
    def replaced(self, messages: int) -> None:
        self._backlog.replaced = messages

    def progress(self) -> tuple[int, int, int]:
        """Messages that were accepted, bytes that were sent of them, and messages that were kept
        and not sent since: which of these a message changes says what came of it."""
        kept = self._backlog.messages + self.replaced + self._dropped.get("age", 0)
        return self.accepted, self.delivered_bytes, kept

    @property
    def leaves_undelivered(self) -> bool:
        """Whether the client has left."""
        return self.drop_counter == UNDELIVERED

    def statistics(self) -> OutboxStatistics:
        dropped = sum(self.dropped.values())
        backlog = self._backlog.messages
        return OutboxStatistics(
            accepted=self.accepted,
            delivered=self.accepted - dropped - self.replaced - self._undelivered - backlog,
            dropped=dropped,
            replaced=self.replaced,
            undelivered=self._undelivered,
            backlog=backlog,
            backlog_bytes=self._backlog.bytes,
        )

    def record_backlog(self) -> BacklogRecord:
        """What waits for the client, and which drops it has to be told."""
        self._settle_drops()
        return self._backlog.record()

    def follow_backlog(self, changes: BacklogRecord) -> None:
        """What waits for the client at another bus waits here as well, until it arrives."""
        if self._backlog or changes != _NOTHING:
            self._backlog.reorder(BacklogOrder.QUEUE)
            self._backlog.follow(changes)

    def retract(self, packet: bytes) -> None:
        """A message that the worker counted as accepted is not for this client after all."""
        counts = self._statistics.counts
        counts[ACCEPTED] -= 1
        counts[ACCEPTED_BYTES] -= len(packet)

    def _count_undelivered(self, messages: int, size_bytes: int) -> None:
        self._undelivered += messages
        self._statistics.counts[UNDELIVERED] += messages
        self._statistics.counts[UNDELIVERED_BYTES] += size_bytes

    # -- drops ---------------------------------------------------------------------------------
    def decide_anew(self) -> None:
        """What the last message was dropped for may have changed."""
        self._settle_drops()
        self._drop_reason, self.drop_counter = "", 0
        self.drops_from_bytes = NO_SIZE
        self.spared_account = NOBODY

    def _drop_likewise(
        self, packet: bytes, reason: str, from_bytes: int, spared_account: int = NOBODY
    ) -> None:
        """Drop a message, and from now on those of `from_bytes` and more for the same reason, but
        for one user's."""
        self._drop(packet, reason)
        self.drops_from_bytes = from_bytes
        self.spared_account = spared_account

    def _drop(self, packet: bytes, reason: str) -> None:
        if reason != self._drop_reason:
            self.decide_anew()
            self._drop_reason, self.drop_counter = reason, DROPPED_AT[reason]
        self._count_drop(packet)

    def _leave_undelivered(self, packet: bytes) -> None:
        """Count a message that nobody will read, and from now on all messages likewise."""
        self.decide_anew()
        self.drop_counter = UNDELIVERED
        self._count_drop(packet)
        self.drops_from_bytes = 0

    def _drops_likewise(self, packet: bytes, publisher_account: int) -> bool:
        """Count a message that is dropped as the last one was; False if that has to be decided."""
        if len(packet) < self.drops_from_bytes or publisher_account == self.spared_account:
            return False
        self._count_drop(packet)
        return True

    def leave_out_likewise(self, packet: bytes, publisher_account: int) -> bool:
        """Count a message that is dropped as the last one was; False if that has to be decided."""
        if not self.is_flowing and self.drop_counter == DROPPED_FAN_OUT:
            self._count_drop(packet)
        elif not self._drops_likewise(packet, publisher_account):
            return False
        self.accepted += 1
        return True

    def _drop_aged_for(self, cost_max: int) -> int:
        """Drop what would be sent and is too old; returns the cost."""
        return -(-self._drop_aged(_AGED_PER_UNIT * cost_max) // _AGED_PER_UNIT)

    def _drop_aged_for_room(self) -> bool:
        """Drop the oldest messages if they have waited for too long; whether there were any."""
        return bool(self._drop_aged(_AGED_FOR_ROOM_MAX, oldest=True))

    def _drop_aged(self, count_max: int, *, oldest: bool = False) -> int:
        """Drop messages that have waited for too long, as they would be sent; returns how many."""
        dropped = self._backlog.drop_aged(count_max, oldest=oldest)
        if dropped:
            self._dropped["age"] = self._dropped.get("age", 0) + len(dropped)
            self._account.count(DROPPED, len(dropped))
            for packet in dropped:
                self._statistics.record_drop("age", len(packet))
        return len(dropped)

    def _count_drop(self, packet: bytes) -> None:
        self.new_drops += 1
        if self.drop_counter == UNDELIVERED:
            counts = self._statistics.counts
            counts[UNDELIVERED] += 1
            counts[UNDELIVERED_BYTES] += len(packet)
        else:
            self._statistics.record_drop(self._drop_reason, len(packet))
            self._account.count(DROPPED, 1)
            self._share_waiting()

    def _settle_drops(self) -> None:
        """Have the new drops in the backlog, as a gap, and among all drops."""
        if not self.new_drops:
            return
        if self.drop_counter == UNDELIVERED:
            self._undelivered += self.new_drops
        else:
            self._backlog.record_drops(self.new_drops)
            before = self._dropped.get(self._drop_reason, 0)
            self._dropped[self._drop_reason] = before + self.new_drops
        self.new_drops = 0
