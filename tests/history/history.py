"""A history: what a log says of each connection, found from its packets alone.

Positions are numbers of entries. An event is a word and its arguments:

    setting WORKERS BACKLOG at the start: of workers, and of messages that may wait for a client
    death WORKER            a worker is made to die
    restart                 all processes die, and the next bus goes on with settled clients
    new-bus                 the same, but the next bus knows no clients
    calm                    nothing is under way: a reply that has not come never comes
    move-begin, move-end    of a client, by the bus's number for it
    kick                    an administrator ends a connection
    upgraded, full-disk     of the bus; no check asks for them
    fault TEXT              the bus failed to do something that it must always do
    places-known WHOSE      a simulation says which messages have a place: `all`, or the bus's `own`
    end                     everybody has read everything: connections that end later do not matter
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator

from sbus.protocol.keys import DIALECTS
from tests.history.log import (
    ANNOUNCED,
    CLOSED,
    ENDED,
    EVENT,
    LOGGED,
    OPENED,
    PLACED,
    RECEIVED,
    REPORTED,
    SENT,
    Entry,
)
from tests.history.matching import Ids
from tests.history.names import tells_of_name
from tests.support.senders import SentBy, without_sender

LOST = b"CMSG !/lost\0"
PACKETS_LOST = b"packets-lost "
_WHOAMI = b"!/cred/whoami"
_OTHER_CONTROLS = {b"!/join", b"!/leave", b"!/me"}
"""Replies that are judged elsewhere, or not at all."""
_CERTAIN_NS = 1_000_000_000
"""A worker that was killed may have read packets that were sent so long after."""


class Message:
    """A message of a client, which its packet tells from all others."""

    def __init__(self, packet: bytes, connection: "Connection", at: int) -> None:
        self.packet = packet
        self.key = packet[4:].partition(b"\0")[0]
        self.connection = connection
        self.sent_at = at
        self.received_at: int | None = None
        """By the first recipient."""
        self.receivers = 0
        self.told_place: int | None = None
        """In the total order, as a recipient was told."""
        self.is_of_bus = False
        """The bus publishes it for the client: its will, and what tells of its name."""
        self.has_place = False
        """Where a simulation knows that."""
        self.is_refused = False
        """A receipt says that it was not published."""

    def __str__(self) -> str:
        return f"{self.packet[:60]!r} of {self.connection.number}"


class Subscription:
    """One occurrence of a pattern: when it may have begun, and when it had."""

    def __init__(self, pattern: bytes, at: int) -> None:
        self.pattern = pattern
        self.sent_at = at
        self.ended_at: int | None = None
        """When the client began to undo it."""


class Connection:
    """One connection."""

    def __init__(self, number: int, at: int, ids: bytes) -> None:
        dialect, gid, uid, pid, *own_number = ids.split()
        self.number = number
        self.opened_at = at
        self.dialect = DIALECTS[dialect.decode()]
        self.ids: Ids = (gid, uid, pid)
        self.bus_number = int(own_number[0]) if own_number else None
        self.sent: list[tuple[int, bytes]] = []
        self.received: list[tuple[int, bytes]] = []
        self.messages: list[Message] = []
        """That it has published itself."""
        self.inbox: list[tuple[int, Message]] = []
        self.subscriptions: list[Subscription] = []
        self.choices: list[bytes] = []
        """Of flood control, and `echo/off`."""
        self.echo_off_at: int | None = None
        self.notices_at: int | None = None
        self.losses: list[tuple[int, int | None]] = []
        """The position and number of each `!/lost`; None where it is unknown."""
        self.unexpected: list[bytes] = []
        """Control messages that the bus does not have, and replies that nobody asked for."""
        self.packets_lost = 0
        self._packets_lost_at: list[int] = []
        self.errors: list[tuple[int, str]] = []
        self.replies: dict[bytes, list[int]] = defaultdict(list)
        """To `!/sync`, by its payload."""
        self.receipts: dict[bytes, list[bytes]] = defaultdict(list)
        self.requests: dict[bytes, Message] = {}
        """With a receipt, by token."""
        self.listed: tuple[int, bytes] | None = None
        """The last list of members, and where it came."""
        self.ended_at: int | None = None
        self.closed_at: int | None = None
        self._asked: dict[bytes, int] = {}
        self._asked_who: list[int] = []
        """The positions of `!/cred/whoami` without a reply."""
        self._confirmed: list[tuple[int, int]] = []
        """Positions of barriers and of their replies, both growing."""

    # -- reading the log -----------------------------------------------------------------------
    def send(self, at: int, packet: bytes) -> Iterator[Message]:
        self.sent.append((at, packet))
        word, _, rest = packet.partition(b" ")
        if word == b"MSG" and b"\0" in rest:
            yield self._publish(packet, at)
        elif word == b"SUB":
            self.subscriptions.append(Subscription(rest, at))
        elif word == b"UNSUB":
            for one in reversed(self.subscriptions):
                if one.pattern == rest and one.ended_at is None:
                    one.ended_at = at
                    break
        elif word == b"CMSG" and self.dialect is DIALECTS["slash"]:
            yield from self._control(at, rest)

    def _publish(self, packet: bytes, at: int) -> Message:
        message = Message(packet, self, at)
        self.messages.append(message)
        return message

    def _control(self, at: int, text: bytes) -> Iterator[Message]:
        key, _, payload = text.partition(b"\0")
        if key == b"!/sync":
            self._asked[payload] = at
        elif key == _WHOAMI:
            self._asked_who.append(at)
        elif key == b"!/notices/on" and self.notices_at is None:
            self.notices_at = at
        elif key == b"!/publish":
            token, _, message = payload.partition(b"\0")
            if token and b"\0" in message:
                self.requests[token] = published = self._publish(b"MSG " + message, at)
                yield published
        elif key == b"!/join" and payload.count(b"\0") >= 2:
            yield self.announce(b"MSG " + payload.partition(b"\0")[2], at)
        elif key.startswith((b"blocking/", b"order/", b"age/", b"echo/")):
            self.choices.append(key)
            if key == b"echo/off" and self.echo_off_at is None:
                self.echo_off_at = at

    def announce(self, packet: bytes, at: int) -> Message:
        """The bus may publish this for the client."""
        message = Message(packet, self, at)
        message.is_of_bus = True
        return message

    def receive_control(self, at: int, packet: bytes) -> None:
        key, _, payload = packet.removeprefix(b"CMSG ").partition(b"\0")
        if packet.startswith(LOST):
            if self.notices_at is None:
                self.unexpected.append(packet)
            self.losses.append((at, None if payload == b"?" else int(payload)))
        elif key == b"!/error":
            self.errors.append((at, payload.partition(b" ")[0].decode()))
            if payload.startswith(PACKETS_LOST):
                self.packets_lost += int(payload.split()[1])
                self._packets_lost_at.append(at)
        elif key == b"!/sync":
            self.replies[payload].append(at)
            if payload in self._asked:
                self.confirm(self._asked[payload], at)
        elif key == _WHOAMI and self._asked_who:
            self.confirm(self._asked_who.pop(0), at)
        elif key == b"!/members":
            self.listed = at, packet
        elif key == b"!/receipt":
            token, _, told = payload.partition(b"\0")
            self.receipts[token].append(told)
            if told.startswith(b"refused ") and token in self.requests:
                self.requests[token].is_refused = True
        elif key not in _OTHER_CONTROLS:
            self.unexpected.append(packet)

    def forget_unanswered(self) -> None:
        """Nothing is under way: what has had no reply was lost, and gets none."""
        self._asked_who.clear()

    def confirm(self, asked_at: int, answered_at: int) -> None:
        """Everything that was sent before has been processed, but for lost packets."""
        if not self._confirmed or asked_at > self._confirmed[-1][0]:
            self._confirmed.append((asked_at, answered_at))

    # -- what follows --------------------------------------------------------------------------
    @property
    def has_left(self) -> bool:
        return self.ended_at is not None or self.closed_at is not None

    @property
    def order(self) -> bytes:
        """Of the backlog: "queue", "latest", or "" for others."""
        orders = {choice[6:] for choice in self.choices if choice.startswith(b"order/")} or {
            b"queue"
        }
        return next(iter(orders)) if orders in ({b"queue"}, {b"latest"}) else b""

    @property
    def may_be_ended(self) -> bool:
        return any(choice.endswith(b"/error") for choice in self.choices)

    @property
    def asked(self) -> dict[bytes, int]:
        """The positions of `!/sync` requests, by payload."""
        return self._asked

    @property
    def last_barrier(self) -> int:
        """The position of the last request that was answered; -1 without one."""
        return self._confirmed[-1][0] if self._confirmed else -1

    def processed_at(self, at: int) -> int | None:
        """When it was certain that a packet sent at this position had been processed."""
        index = bisect_left(self._confirmed, (at, 0))
        return self._confirmed[index][1] if index < len(self._confirmed) else None

    def certain_from(self, at: int) -> int | None:
        """When a packet sent at this position had taken effect; None if it may have been lost."""
        processed = self.processed_at(at)
        if processed is None or any(at < lost < processed for lost in self._packets_lost_at):
            return None
        return processed


class History:
    """Of one run."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.connections: dict[int, Connection] = {}
        self.messages: dict[bytes, Message] = {}
        self.strangers: list[tuple[Connection, bytes]] = []
        """Packets that nobody has sent, with their recipients."""
        self.senders: list[tuple[Connection, Message, SentBy]] = []
        """Recipient, message, and what the bus says."""
        self.events: list[tuple[int, int, list[str]]] = []
        """Positions, nanoseconds and words."""
        self.reports: list[bytes] = []
        self.lines: list[bytes] = []
        self.times: list[int] = []
        self.is_over = False
        self.placed: list[Message] = []
        """Those that a simulation knows to have a place, in their order."""
        self.knows_all_places = False
        self.knows_own_places = False
        """Of messages that the bus publishes itself."""
        for at, entry in enumerate(entries):
            self.times.append(entry.ns)
            self._add(at, entry)
        settings = [words for _, _, words in self.events if words[0] == "setting"]
        workers, self.backlog_max = map(int, settings[0][1:]) if settings else (1, 65_536)
        restarts = len(self.positions("restart"))
        self.deaths = len(self.positions("death")) + restarts * (workers + 2)
        """Of workers; an upgrade may have added some before a restart."""

    def positions(self, *names: str) -> list[int]:
        return [at for at, _, words in self.events if words[0] in names]

    def _add(self, at: int, entry: Entry) -> None:
        if entry.direction == OPENED:
            self.connections[entry.client] = Connection(entry.client, at, entry.packet)
        elif entry.direction == EVENT:
            self.events.append((at, entry.ns, entry.packet.decode().split()))
            if entry.packet == b"calm":
                for one in self.connections.values():
                    one.forget_unanswered()
            self.is_over |= entry.packet == b"end"
            self.knows_all_places |= entry.packet == b"places-known all"
            self.knows_own_places |= entry.packet.startswith(b"places-known")
        elif entry.direction == REPORTED:
            self.reports.append(entry.packet)
        elif entry.direction == LOGGED:
            self.lines.append(entry.packet)
        elif entry.direction == PLACED:
            message = self.messages[entry.packet]
            message.has_place = True
            self.placed.append(message)
        else:
            self._add_packet(self.connections[entry.client], at, entry)

    def _add_packet(self, one: Connection, at: int, entry: Entry) -> None:
        if entry.direction == SENT:
            for message in one.send(at, entry.packet):
                self.messages[message.packet] = message
        elif entry.direction == ANNOUNCED:
            self.messages.setdefault(entry.packet, one.announce(entry.packet, at))
        elif entry.direction == RECEIVED:
            one.received.append((at, entry.packet))
            self._receive(one, at, entry.packet)
        elif entry.direction == ENDED and not self.is_over:
            one.ended_at = at
        elif entry.direction == CLOSED and not self.is_over:
            one.closed_at = at

    def _receive(self, one: Connection, at: int, packet: bytes) -> None:
        sent_by, packet = without_sender(packet)
        if packet.startswith(b"CMSG "):
            one.receive_control(at, packet)
            return
        message = self.messages.get(packet)
        if message is None:
            if self.knows_own_places or not tells_of_name(packet):
                self.strangers.append((one, packet))
            return
        if sent_by is not None:
            self.senders.append((one, message, sent_by))
            if message.connection.bus_number is None:
                message.connection.bus_number = sent_by.client
            message.told_place = sent_by.place
        message.received_at = at if message.received_at is None else message.received_at
        message.receivers += 1
        one.inbox.append((at, message))
        if message.connection is one and not message.is_of_bus:
            one.confirm(message.sent_at, at)

    def died_between(self, first: int, last: int) -> bool:
        """Whether a worker or the bus died within these nanoseconds."""
        return any(
            words[0] in ("death", "restart", "new-bus") and first <= ns <= last
            for _, ns, words in self.events
        )

    def is_told(self, one: Connection) -> bool:
        """Whether a client has certainly turned notices on."""
        if one.notices_at is None or (processed := one.processed_at(one.notices_at)) is None:
            return False
        sent_ns = self.times[one.notices_at]
        return not self.died_between(sent_ns - _CERTAIN_NS, self.times[processed])

    @property
    def lost_unannounced_max(self) -> int:
        """Packets of a client of which nobody may be told. A simulation kills a worker between
        any two instructions, and so where it has read a packet that nobody knows of yet."""
        return self.deaths if self.knows_own_places else 0
