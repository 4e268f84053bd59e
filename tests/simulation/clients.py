"""Simulated clients, and what each of them knows: what it sent and received, and when.

"When" is a number that grows with everything that any client does.
"""

import itertools
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from sbus.protocol.controls import lost_notice
from sbus.unix.credentials import Credentials
from tests.support.senders import SentBy, without_sender

_PACKET_BYTES_MAX = 8192
_LOST = b"CMSG !/lost\0"
_ERROR = b"CMSG !/error\0"
_PACKETS_LOST = _ERROR + b"packets-lost "
_WHOAMI = b"CMSG !/cred/whoami"
_RECEIPT = b"CMSG !/receipt\0"
_ASKING_BYTES = 40
"""At most, of asking for a receipt."""
_NAME_REPLIES = (b"CMSG !/join\0", b"CMSG !/leave\0")
_LISTED = b"CMSG !/members\0"
_NEVER = 1 << 62


@dataclass(eq=False, slots=True)
class Message:
    """As it was sent; `packet` is unlike all others."""

    publisher: int
    number: int
    key: bytes
    packet: bytes
    sent_at: int
    behind: "Message | None"
    """The last message that its publisher had received, so that it may be the cause of this one."""


class Subscription:
    """One pattern of one client. Times are those of packets, and of replies that confirm them."""

    def __init__(self, pattern: bytes, asked_at: int) -> None:
        self.pattern = pattern
        self.asked_at = asked_at
        self.confirmed_at = _NEVER
        self.end_asked_at = _NEVER
        self.end_confirmed_at = _NEVER
        self.is_certain = True
        """Its client was not told that packets of these times were not processed."""

    def is_open(self) -> bool:
        """Whether its client has not ended it."""
        return self.end_asked_at == _NEVER

    def confirm(self, asked_at: int, now: int) -> None:
        """A reply confirms what was sent before this time."""
        if self.is_certain:
            if self.asked_at < asked_at:
                self.confirmed_at = min(self.confirmed_at, now)
            if self.end_asked_at < asked_at:
                self.end_confirmed_at = min(self.end_confirmed_at, now)

    def doubt(self) -> None:
        """Packets were lost, maybe that which is not confirmed yet."""
        if self.confirmed_at == _NEVER or (not self.is_open() and self.end_confirmed_at == _NEVER):
            self.is_certain = False


class Received(NamedTuple):
    """A message, and how many losses its client was told of before."""

    message: Message
    lost_before: int


class Times:
    """What all clients of a bus share: the time, and all messages by their packets."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.messages: dict[bytes, Message] = {}
        self.places: dict[Message, int] = {}
        """In the total order, as the recipients that want to know the sender are told."""

        self.publishers: dict[int, Credentials] = {}
        """All clients, by number."""

    def next(self) -> int:
        return next(self._numbers)


class SimulatedClient:
    """The client's end of a connection."""

    def __init__(self, number: int, own: Credentials, sock: socket.socket, times: Times) -> None:
        self.number = number
        self.own = own
        self._sock = sock
        self._times = times
        times.publishers[number] = own
        self._last_place = 0
        sock.setblocking(False)
        self.sent: list[Message] = []
        self.received: list[Received] = []
        self.subscriptions: list[Subscription] = []
        self.receipts: dict[int, list[bytes]] = {}
        """What it was told of the messages with these numbers, for which it has asked."""
        self.echo: bool | None = True
        """None if packets were lost since it was chosen."""
        self.wants_latest = False
        """In its backlog, a newer message of the same key takes the place of an older one."""
        self.lost = 0
        """Messages that the bus says it has lost."""
        self.notices: list[int] = []
        """The numbers of which that is the sum."""
        self.lost_unknown = False
        self.unprocessed = 0
        """Packets of this client that the bus says it has not processed."""
        self.requests: list[int] = []
        """When the requests without replies were sent."""
        self.replies = 0
        self.announced: list[Message] = []
        """All that the bus may publish about the names that it has asked for."""
        self.name_replies = 0
        self.listed = b""
        """The last list of members that it got."""
        self.settings_are_certain = True
        """Nothing had failed before the bus had its settings; later it might not get notices."""
        self.reason = ""
        """Why the connection ends, as the last packet says."""
        self.has_ended = False
        self.has_left = False

    # -- sending -------------------------------------------------------------------------------
    def _send(self, packet: bytes) -> bool:
        """Whether the kernel took it."""
        try:
            self._sock.send(packet)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def control(self, key: bytes) -> bool:
        return self._send(b"CMSG " + key)

    def publish(self, key: bytes, size: int) -> None:
        number = len(self.sent)
        packet = b"MSG %b\0%d %d " % (key, self.number, number)
        packet += b"." * (size - len(packet))
        if self._send(packet):
            last = self.received[-1].message if self.received else None
            message = Message(self.number, number, key, packet, self._times.next(), last)
            self.sent.append(message)
            self._times.messages[packet] = message

    def ask(self, key: bytes, size: int) -> None:
        """Publish a message, and ask for a receipt."""
        number = len(self.sent)
        packet = b"MSG %b\0%d %d " % (key, self.number, number)
        packet += b"." * (size - _ASKING_BYTES - len(packet))
        if self._send(b"CMSG !/publish\0%d\0%b" % (number, packet.removeprefix(b"MSG "))):
            last = self.received[-1].message if self.received else None
            message = Message(self.number, number, key, packet, self._times.next(), last)
            self.sent.append(message)
            self._times.messages[packet] = message
            self.receipts[number] = []

    def subscribe(self, pattern: bytes) -> None:
        if self._send(b"SUB " + pattern):
            self.subscriptions.append(Subscription(pattern, self._times.next()))

    def unsubscribe(self, subscription: Subscription) -> None:
        if self._send(b"UNSUB " + subscription.pattern):
            subscription.end_asked_at = self._times.next()

    def request(self) -> None:
        """Ask for a reply, which confirms everything before it."""
        if self._send(_WHOAMI):
            self.requests.append(self._times.next())

    def join(self, name: bytes, will: bytes, told: list[bytes]) -> None:
        """Ask for a name; `told` are the packets that may tell of it."""
        if self._send(b"CMSG !/join\0" + name + (b"\0" + will if will else b"")):
            for packet in told:
                if packet not in self._times.messages:
                    key = packet[4 : packet.index(b"\0")]
                    number, at = len(self.announced), self._times.next()
                    message = Message(-self.number, number, key, packet, at, None)
                    self.announced.append(message)
                    self._times.messages[packet] = message

    def certain_subscriptions(self) -> list[Subscription]:
        """Those that nothing has ended. An `UNSUB` ends another one of its pattern if the `SUB` for
        which it was meant was lost."""
        doubtful = {it.pattern for it in self.subscriptions if not it.is_certain}
        ended = {it.pattern for it in self.subscriptions if not it.is_open()}
        return [it for it in self.subscriptions if it.pattern not in doubtful & ended]

    def leave(self) -> None:
        self.has_left = True
        self._sock.close()

    # -- receiving -----------------------------------------------------------------------------
    def read(self, packets_max: int = 1_000_000) -> int:
        """Read what is here; returns how many packets that was."""
        if self.has_ended or self.has_left:
            return 0
        count = 0
        with suppress(BlockingIOError):
            while count < packets_max:
                try:
                    packet = self._sock.recv(_PACKET_BYTES_MAX)
                except ConnectionResetError:  # once, if the bus has left something unread
                    continue
                if not packet:
                    self.has_ended = True
                    break
                count += 1
                self._take(packet)
        return count

    def _take(self, packet: bytes) -> None:
        sent_by, packet = without_sender(packet)
        if packet.startswith(b"MSG "):
            message = self._times.messages.get(packet)
            assert message is not None, f"client {self.number}: nobody sent {packet!r}"
            if sent_by is not None:
                self._note_sender(message, sent_by)
            self.received.append(Received(message, self.lost))
        elif packet == lost_notice(None):
            self.lost_unknown = True
        elif packet.startswith(_LOST):
            self.notices.append(int(packet.removeprefix(_LOST)))
            self.lost += self.notices[-1]
        elif packet.startswith(_PACKETS_LOST):
            self.unprocessed += int(packet.removeprefix(_PACKETS_LOST).split()[0])
            self.echo = None
            for subscription in self.subscriptions:
                subscription.doubt()
        elif packet.startswith(_RECEIPT):
            token, _, text = packet.removeprefix(_RECEIPT).partition(b"\0")
            self.receipts[int(token)].append(text)
        elif packet.startswith(_LISTED):
            self.listed = packet
        elif packet.startswith(_NAME_REPLIES):
            self.name_replies += 1
        elif packet.startswith(_WHOAMI):
            self._confirm()
        else:
            assert packet.startswith(_ERROR), packet
            self.reason = packet.removeprefix(_ERROR).decode()

    def _note_sender(self, message: Message, sent_by: SentBy) -> None:
        """Everybody is told the same about a message, and its true publisher."""
        number = abs(message.publisher)  # the bus publishes what tells of a client's name
        publisher = self._times.publishers[number]
        own = (number, publisher.gid, publisher.uid, publisher.pid)
        assert sent_by[1:] == own, f"{message} was not sent by {sent_by}"
        grows = sent_by.place > self._last_place or self.wants_latest
        assert grows, f"client {self.number}: places do not grow"
        self._last_place = sent_by.place
        assert self._times.places.setdefault(message, sent_by.place) == sent_by.place

    def _confirm(self) -> None:
        """A reply confirms what was sent before the oldest request without one."""
        assert self.requests, "a reply that nobody asked for"
        asked_at, now = self.requests.pop(0), self._times.next()
        self.replies += 1
        for subscription in self.subscriptions:
            subscription.confirm(asked_at, now)
