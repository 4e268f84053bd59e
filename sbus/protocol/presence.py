"""Presence: the control messages by which clients take names, and the messages about it.

    CMSG !/join\\0NAME [\\0key\\0payload]      take a name, with a last will or without
    CMSG !/leave                             give it up
    CMSG !/members\\0UID/NAME [\\0UID/NAME]    who has these names, behind that member

A *will* has the form of a message's packet without the word: key, NUL, payload. It is empty if
there is none.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from sbus.errors import ClientFault, ProtocolViolation, Refusal
from sbus.protocol.packets import NUL, Message, encode_control, encode_publish
from sbus.protocol.presence_keys import NAME_BYTES_MAX, PRESENCE, check_name

JOIN: Final = b"!/join"
LEAVE: Final = b"!/leave"
MEMBERS: Final = b"!/members"
REQUESTS: Final = frozenset({JOIN, LEAVE, MEMBERS})
WILL_BYTES_MAX: Final = 4_096
"""Of key, NUL and payload: every worker has a copy in the subscription table."""
MEMBERS_BYTES_MAX: Final = 32_768
"""Of a reply to `MEMBERS`, but for its last line: some hundreds of members. A client asks for more
when it has read that."""
LEFT: Final = "left"
"""Why a name is free again: its client has closed its connection."""
GAVE_UP: Final = "gave-up"
"""Its client has given it up."""

_MORE, _END, _REFUSED = b"more", b"end", b"refused "
_JOINED, _LEFT = b"join", b"leave"


class Member(msgspec.Struct, frozen=True, order=True):
    """A client that has a name, which is unique among the names of its user."""

    uid: int
    name: bytes
    client: int
    gid: int
    pid: int

    @property
    def key(self) -> bytes:
        """Of the messages that tell of it."""
        return b"%b%d/%b" % (PRESENCE, self.uid, self.name)

    def join_message(self) -> bytes:
        return encode_publish(self.key, b"%b %d %d %d" % (_JOINED, *self._ids))

    def leave_message(self, reason: str) -> bytes:
        return encode_publish(self.key, b"%b %d %d %d %b" % (_LEFT, *self._ids, reason.encode()))

    @property
    def _ids(self) -> tuple[int, int, int]:
        return self.client, self.gid, self.pid


class MemberChange(msgspec.Struct, frozen=True):
    """A member has joined, or has left for this reason."""

    member: Member
    reason: str | None = None
    """None if it has joined."""


# -- what clients send -----------------------------------------------------------------------------
def parse_join(payload: bytes) -> tuple[bytes, bytes]:
    """The name and the will. Raises Refusal `bad-name`, `bad-will`."""
    name, has_will, will = payload.partition(NUL)
    check_name(name)
    if has_will and NUL not in will:
        raise Refusal("bad-will", "a will needs a NUL after its key")
    if len(will) > WILL_BYTES_MAX:
        raise Refusal("bad-will", f"a will has at most {WILL_BYTES_MAX} bytes, with its key")
    return name, will


def key_of_will(will: bytes) -> bytes:
    return will.partition(NUL)[0]


# -- what the bus replies --------------------------------------------------------------------------
def join_reply(payload: bytes, fault: ClientFault | None = None) -> bytes:
    """The reply to `JOIN` with this payload: the name, and why it was not given."""
    name = payload.partition(NUL)[0][:NAME_BYTES_MAX]
    if fault is None:
        return encode_control(JOIN, name)
    return encode_control(JOIN, b"%b\0%b %b" % (name, fault.code.encode(), fault.text.encode()))


def leave_reply(name: bytes) -> bytes:
    """The reply to `LEAVE` of a client that had this name, or none."""
    return encode_control(LEAVE, name)


def members_reply(members: Iterable[Member]) -> bytes:
    """The reply to `MEMBERS`: the first of these, as many as it has room for."""
    lines, size, first = [b""], 0, _END
    for member in members:
        if size > MEMBERS_BYTES_MAX:
            first = _MORE
            break
        lines.append(b"%d %b %d %d %d" % msgspec.structs.astuple(member))
        size += len(lines[-1]) + 1
    lines[0] = first
    return encode_control(MEMBERS, b"\n".join(lines))


def members_refused(fault: ClientFault) -> bytes:
    """The reply to a `MEMBERS` that cannot be answered."""
    return encode_control(
        MEMBERS, b"%b%b %b" % (_REFUSED, fault.code.encode(), fault.text.encode())
    )


# -- what clients receive --------------------------------------------------------------------------
def parse_members(payload: bytes) -> tuple[list[Member], bool]:
    """The members of a reply, and whether there are more. Raises Refusal, ProtocolViolation."""
    first, *lines = payload.split(b"\n")
    if first.startswith(_REFUSED):
        code, _, text = first.removeprefix(_REFUSED).decode().partition(" ")
        raise Refusal(code, text)
    if first not in (_MORE, _END):
        raise ProtocolViolation(f"the bus sent an invalid list of members: {payload[:32]!r}")
    return [_parse_member(line) for line in lines], first == _MORE


def _parse_member(line: bytes) -> Member:
    try:
        uid, name, client, gid, pid = line.split(b" ")
        return Member(int(uid), name, int(client), int(gid), int(pid))
    except ValueError as error:
        raise ProtocolViolation(f"the bus sent an invalid member: {line[:100]!r}") from error


def parse_change(message: Message) -> MemberChange:
    """What a message with a presence key tells. Raises ProtocolViolation."""
    try:
        uid, name = message.key.removeprefix(PRESENCE).split(b"/")
        what, client, gid, pid, *reason = message.payload.split(b" ")
        member = Member(int(uid), name, int(client), int(gid), int(pid))
        if (what, len(reason)) not in ((_JOINED, 0), (_LEFT, 1)):
            raise ValueError(what)
    except ValueError as error:
        raise ProtocolViolation(f"the bus sent {message.payload[:32]!r} about a name") from error
    return MemberChange(member, reason[0].decode() if reason else None)
