"""The inbox of a connection: packets that have arrived and that the program has not taken yet.

Replies settle their requests. Messages wait in one queue or several, see `routes.py`. The next call
raises refusals and the end of the connection. Nothing grows without bound: reading stops when the
one queue is full, and then the limits of the bus apply.
"""

from collections.abc import Callable, Iterator
from typing import Generic

import msgspec

from sbus.client.message_queue import Item, Lost, MessageQueue, Reconnected, logger
from sbus.client.names import NameRequests
from sbus.client.receipts import Receipts
from sbus.client.refusals import Refusals
from sbus.client.replies import Replies
from sbus.client.requests import Barrier, MeRequests, WhoamiBarrier
from sbus.client.routes import Routes
from sbus.errors import (
    BusError,
    Disconnected,
    MessagesUnconfirmed,
    PacketRefused,
    ProtocolViolation,
)
from sbus.protocol import controls, presence
from sbus.protocol.codes import LAST_CODES, PACKETS_LOST
from sbus.protocol.keys import SLASH, Dialect
from sbus.protocol.packets import (
    NUL,
    PUBLISH_WORD,
    ControlMessage,
    Message,
    parse_server_packet,
)
from sbus.protocol.receipts import RECEIPT

DOT_ADVICE = (
    " and has sent nothing; if it has the dot dialect, connect with dialect='dot', "
    "or with sbusctl --dialect dot"
)
_KEY_AT = len(PUBLISH_WORD)
COUNT_DIGITS_MAX = 20
"""Digits of a count of 64 bits in a notice."""


class InboxFull(BusError):
    """Too much arrived while waiting for a reply. Nothing is lost: receive, then try again."""


class InboxStatistics(msgspec.Struct, frozen=True):
    """`messages` and `bytes` wait now to be received from the connection itself; the others count
    since the beginning of the connection.

    `messages_lost` excludes losses that the bus could not count; `gaps` includes them.
    """

    messages: int
    bytes: int
    messages_received: int
    messages_lost: int
    gaps: int
    packets_refused: int
    controls_ignored: int


class Inbox(Generic[Item]):
    """The inbox of one connection; `Item` is Message, or also Lost if losses are reported."""

    def __init__(
        self,
        barrier: Barrier,
        own: MessageQueue[Item],
        dialect: Dialect = SLASH,
        *,
        logs_losses: bool = False,
    ) -> None:
        self.own = own
        """For what the connection itself receives."""
        self._logs_losses = logs_losses
        self.routes = Routes(own, dialect)
        self.me = MeRequests()
        self.names = NameRequests()
        self.mend_lost_packets: Callable[[], bool] = lambda: False
        """The bus has lost packets of this client; returns whether that is not to be raised."""
        self.note_sync: Callable[[bytes], None] = lambda token: None
        """The bus has replied to `!/sync` with this token."""
        self.receipts = Receipts()
        self.replies = Replies(self.receipts)
        self.note_refusal: Callable[[], None] = lambda: None
        """The bus has refused a packet."""
        self._barrier = barrier
        self._echo_key = barrier.echo_key
        self.refusals = Refusals(barrier)
        self._unconfirmed = 0
        self._last_notice: tuple[str, str] | None = None
        self._end: tuple[type[BusError], str] | None = None
        self._messages_received = 0
        self._messages_lost = 0
        self._gaps = 0
        self._packets_refused = 0
        self._controls_ignored = 0

    # -- arriving ------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self.own.has_room or self.routes.never_wait

    @property
    def ended(self) -> bool:
        """Nothing more will arrive."""
        return self._end is not None

    def feed(self, packet: bytes) -> None:
        """Take in one packet from the bus; an invalid one ends the connection."""
        try:
            parsed = parse_server_packet(packet)
            if isinstance(parsed, ControlMessage):
                self._feed_control(parsed)
                return
        except ProtocolViolation as violation:
            self.end(ProtocolViolation, str(violation))
            return
        if parsed.key == self._echo_key:
            self._barrier.replied(parsed.payload)
            return
        if parsed.key == self.replies.key and parsed.key:
            self.replies.feed(parsed.payload)
            return
        self._messages_received += 1
        if self.routes.are_shared:
            self.routes.deliver(parsed)
        else:
            self.own.add(parsed)

    def feed_messages(self, packets: Iterator[bytes]) -> bytes | None:
        """Take in messages for the connection's own queue; returns the first packet that is
        anything else, for `feed`, or None after all of them. Many cost much less so."""
        if self.routes.are_shared:
            return next(packets, None)
        messages: list[Message] = []
        size_bytes, other = 0, None
        reply_keys = (self.replies.key, self._echo_key)
        head, key = None, b""  # of the packet before
        for packet in packets:
            beginning, nul, payload = packet.partition(NUL)
            if beginning != head or not nul:
                head, key = beginning, beginning[_KEY_AT:]
                if not (nul and beginning.startswith(PUBLISH_WORD)) or key in reply_keys:
                    other = packet
                    break
            messages.append(Message(key, payload))
            size_bytes += len(packet) - _KEY_AT - 1
        self._messages_received += len(messages)
        self.own.add_all(messages, size_bytes)
        return other

    def feed_end_of_connection(
        self, can_mend: Callable[[str | None], bool] | None = None
    ) -> str | None:
        """The bus has closed the connection, for the reason in its last notice if there was one.

        Nothing more will arrive, unless the connection `can_mend` after an end with the notice's
        code, or None: then returns the reason.
        """
        code, reason = None, "the bus closed the connection"
        if self._last_notice is not None:
            code, text = self._last_notice
            reason += f": {text} ({code})"
        if can_mend is not None and can_mend(code):
            self._last_notice = None
            return reason
        if code is None and self._has_heard_nothing():
            reason += DOT_ADVICE
        self.end(Disconnected, reason)
        return None

    def _has_heard_nothing(self) -> bool:
        """Whether the bus has sent nothing, though it was to tell the reason of the end."""
        heard = self._messages_received + self._gaps + self._packets_refused
        has_replied = self._barrier.identity is not None
        return isinstance(self._barrier, WhoamiBarrier) and not (heard or has_replied)

    def end(self, kind: type[BusError], text: str) -> None:
        """Nothing more will arrive: once the queue is empty, raise `kind(text)`."""
        if self._end is None:
            self._end = (kind, text)

    def feed_reconnected(self, reason: str) -> None:
        """The connection was lost for this reason, and a new one was made."""
        self._feed_gap(Reconnected(None, reason))

    def add_unconfirmed(self, count: int) -> None:
        """The connection was lost before so many published messages were confirmed."""
        self._unconfirmed += count
        if count and self._logs_losses:
            logger.warning("%s", MessagesUnconfirmed(count))

    def fail_all(self, error: BusError) -> None:
        """Neither an answer nor a receipt will come to what is open."""
        self.replies.fail_all(error)
        self.receipts.fail_all(error)

    def add_refusal(self, refused: PacketRefused) -> None:
        """The bus has refused what the program does not wait for."""
        self._packets_refused += 1
        self.refusals.add_for_all(refused)

    def discard(self) -> None:
        """Forget everything that waits."""
        self.routes.clear()
        self.refusals.clear()
        self._unconfirmed = 0

    def _feed_control(self, control: ControlMessage) -> None:
        if control.key == controls.WHOAMI:
            self._barrier.replied(control.payload)
        elif control.key == controls.ME:
            self.me.replied(control.payload)
        elif control.key in presence.REQUESTS:
            self.names.replied(control.payload)
        elif control.key == controls.SYNC:
            self.note_sync(control.payload)
        elif control.key == RECEIPT:
            self.receipts.feed(control.payload)
        elif control.key == controls.LOST:
            self._feed_gap(Lost(parse_lost_count(control.payload)))
        elif control.key == controls.ERROR:
            self._feed_refusal(control.payload.decode(errors="backslashreplace"))
        else:
            self._controls_ignored += 1

    def _feed_gap(self, gap: Lost) -> None:
        self._gaps += 1
        self._messages_lost += gap.count or 0
        self.routes.deliver_gap(gap)

    def _feed_refusal(self, notice: str) -> None:
        code, _, text = notice.partition(" ")
        if code in LAST_CODES:
            self._last_notice = (code, text)
            return
        self._packets_refused += 1
        if code == PACKETS_LOST and self.mend_lost_packets():
            return
        self.note_refusal()
        refused = PacketRefused(code, text)
        self.refusals.add(refused)
        if code == PACKETS_LOST and self._logs_losses:
            logger.warning("%s", refused)

    # -- leaving -------------------------------------------------------------------------------

    def take(self, queue: MessageQueue[Item]) -> Item | None:
        """The next item of a queue of this connection, or None while there is none.

        Raises PacketRefused first, MessagesLost in its place in the queue (unless losses are
        reported or logged), and the end of the connection when the queue is empty.
        """
        self._raise_errors_to_receiver()
        item = queue.take()
        if item is None:
            self.raise_end()
        return item

    def take_many(self, queue: MessageQueue[Item], limit: int) -> list[Item]:
        """Up to `limit` items of a queue of this connection, perhaps none, up to the next loss;
        raises the same as `take`."""
        self._raise_errors_to_receiver()
        items = queue.take_many(limit)
        if not items:
            self.raise_end()
        return items

    def _raise_errors_to_receiver(self) -> None:
        """`raise_errors`, except for messages of an unknown fate where losses are logged: those are
        for who asks what was processed, and end no loop."""
        if not self._logs_losses:
            self.raise_errors()
        else:
            self.refusals.raise_next(but_lost=True)

    def raise_errors(self) -> None:
        """Raise MessagesUnconfirmed, or PacketRefused if the bus refused something of the current
        task, if either has happened since the last time."""
        if self._unconfirmed:
            unconfirmed, self._unconfirmed = self._unconfirmed, 0
            raise MessagesUnconfirmed(unconfirmed)
        self.refusals.raise_next()

    def raise_end(self) -> None:
        """Raise Disconnected or ProtocolViolation if the connection has ended."""
        if self._end is not None:
            kind, text = self._end
            raise kind(text)

    def raise_full(self) -> None:
        """Raise InboxFull if there is no room for a packet."""
        if not self.has_room:
            raise InboxFull(
                f"{len(self.own)} messages ({self.own.bytes} bytes) wait to be received, and there "
                "is no room to look for a reply after them: receive them first, or connect with a "
                "larger inbox_messages_max and inbox_bytes_max"
            )

    def statistics(self) -> InboxStatistics:
        return InboxStatistics(
            messages=len(self.own),
            bytes=self.own.bytes,
            messages_received=self._messages_received,
            messages_lost=self._messages_lost,
            gaps=self._gaps,
            packets_refused=self._packets_refused,
            controls_ignored=self._controls_ignored,
        )


def parse_lost_count(payload: bytes) -> int | None:
    """The payload of a notice of lost messages. Raises ProtocolViolation."""
    if payload == b"?":
        return None
    if not payload.isdigit() or len(payload) > COUNT_DIGITS_MAX:
        raise ProtocolViolation(f"the bus reported {payload[:32]!r} messages lost")
    return int(payload)
