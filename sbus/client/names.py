"""The requests of a connection about names, and the members that it is told of.

The bus replies to `!/join`, `!/leave` and `!/members` in their order, so replies are counted. Each
of these requests may be repeated: a join that has its place already gets the same reply.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from sbus.client.packet_encoder import to_bytes
from sbus.client.requests import Requests
from sbus.errors import PacketRefused, Refusal
from sbus.protocol import presence
from sbus.protocol.packets import NUL, Message, encode_control
from sbus.protocol.presence import Member, MemberChange
from sbus.protocol.presence_keys import PRESENCE, parse_name_pattern

UNKNOWN = "unknown"
"""Why a member has gone, if what tells of it was lost."""

T = TypeVar("T")


class NameRequest(Requests):
    """One of them, with its own packet. `on_reply` is called in the place of the reply."""

    def __init__(
        self, requests: "NameRequests", packet: bytes, on_reply: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self._requests = requests
        self._packet = packet
        self.on_reply = on_reply
        self.reply = b""

    def encode(self) -> bytes:
        return self._packet

    def sent(self, packet: bytes) -> int:
        return self._requests.expect(self)

    def is_settled(self, ticket: int) -> bool:
        return self._requests.is_settled(ticket)

    def abandon(self, ticket: int) -> None:
        self._requests.abandon(ticket)


class NameRequests(Requests):
    """All of one connection."""

    def __init__(self) -> None:
        super().__init__()
        self._awaited: dict[int, NameRequest] = {}
        self._repeated = 0
        """The ticket of what was sent again on a new connection."""
        self.refused_again: PacketRefused | None = None
        """Why the bus refuses the name that this connection had before it was made again."""

    def join(self, name: bytes | str, will: tuple[bytes | str, bytes | str] | None) -> NameRequest:
        """Raises PacketRefused for what the bus would refuse in any case."""
        payload = to_bytes(name, "a name")
        if will is not None:
            key, content = to_bytes(will[0], "a key"), to_bytes(will[1], "a payload")
            payload += b"%b%b%b%b" % (NUL, key, NUL, content)
        _checked(presence.parse_join, payload)
        return NameRequest(self, encode_control(presence.JOIN, payload))

    def leave(self) -> NameRequest:
        return NameRequest(self, encode_control(presence.LEAVE))

    def members(
        self, pattern: bytes | str, after: Member | None, on_reply: Callable[[], None]
    ) -> NameRequest:
        """Who has such a name, behind this member. Raises PacketRefused."""
        payload = to_bytes(pattern, "a pattern")
        _checked(parse_name_pattern, payload)
        if after is not None:
            payload += b"%b%d/%b" % (NUL, after.uid, after.name)
        return NameRequest(self, encode_control(presence.MEMBERS, payload), on_reply)

    # -- sending and receiving -----------------------------------------------------------------
    def expect(self, request: NameRequest) -> int:
        """Returns the ticket of a request that was sent."""
        ticket = self.sent(b"")
        self._awaited[ticket] = request
        return ticket

    def note_repeated(self) -> None:
        """A request that nobody waits for is sent on a new connection."""
        self._repeated = self.sent(b"")
        self.refused_again = None

    def replied(self, payload: bytes) -> None:
        super().replied(payload)
        request = self._awaited.pop(self._settled, None)
        if request is not None:
            request.reply = payload
            request.on_reply()
        if self._settled == self._repeated:
            self.refused_again = _refusal(payload)

    def abandon(self, ticket: int) -> None:
        self._awaited.pop(ticket, None)

    def abandon_all(self) -> None:
        super().abandon_all()
        self._awaited.clear()
        self._repeated = 0
        self.refused_again = None


def raise_refusal(request: NameRequest) -> None:
    """Raise PacketRefused if the bus has not given this name."""
    fault = _refusal(request.reply)
    if fault is not None:
        raise fault


def _refusal(payload: bytes) -> PacketRefused | None:
    _, is_refused, fault = payload.partition(NUL)
    code, _, text = fault.decode(errors="backslashreplace").partition(" ")
    return PacketRefused(code, text) if is_refused else None


def read_members(request: NameRequest) -> tuple[list[Member], bool]:
    """The members in a reply, and whether there are more. Raises PacketRefused."""
    return _checked(presence.parse_members, request.reply)


def _checked(parse: Callable[[bytes], T], payload: bytes) -> T:
    try:
        return parse(payload)
    except Refusal as fault:
        raise PacketRefused(fault.code, fault.text) from None


class Roster:
    """Who is there, as one connection is told."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Member] = {}

    def members(self) -> list[Member]:
        """Sorted by user and name."""
        return sorted(self._by_key.values())

    def feed(self, message: Message) -> MemberChange | None:
        """Follow a message that tells of a member; returns what has changed. Raises
        ProtocolViolation."""
        if not message.key.startswith(PRESENCE):
            return None
        change = presence.parse_change(message)
        member = change.member
        before = self._by_key.get(member.key)
        if (before == member) == (change.reason is None):
            return None  # it was in a list already, or is not any more
        if change.reason is None:
            self._by_key[member.key] = member
        else:
            del self._by_key[member.key]
        return change

    def replace(self, members: Iterable[Member]) -> list[MemberChange]:
        """Exactly these are there now; returns what has changed."""
        now = {member.key: member for member in members}
        gone = [it for it in self.members() if now.get(it.key) != it]
        new = [it for it in sorted(now.values()) if self._by_key.get(it.key) != it]
        self._by_key = now
        return [*(MemberChange(it, UNKNOWN) for it in gone), *map(MemberChange, new)]


def presence_pattern(pattern: bytes | str) -> bytes:
    """The pattern to subscribe to for members with such names."""
    return PRESENCE + to_bytes(pattern, "a pattern")
