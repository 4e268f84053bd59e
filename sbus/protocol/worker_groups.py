"""The names of a worker group's members, and the messages between them.

    name     GROUP.ID                             ID: 16 hexadecimal digits
    message  MSG !/cred//UID//workers/GROUP\0hello JOBS     of a member that has joined
    message  MSG !/cred//UID//workers/GROUP\0here JOBS      of each other member then
    message  MSG !/cred//UID//workers/GROUP\0done PLACE     of a job's owner; PLACE is the job's

JOBS is a digest of the patterns of the group's jobs. They must be the same for all members, so that
all know the same jobs. All members belong to one user. The bus names the publisher of these
messages, so only a job's owner can call it done.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from sbus.errors import PacketRefused, Refusal
from sbus.protocol.packets import Message
from sbus.protocol.presence_keys import PRESENCE, check_name

_HELLO: Final = b"hello "
_HERE: Final = b"here "
_DONE: Final = b"done "
ID_BYTES: Final = 8
"""Random ones, which no other member has."""
_PLACE = re.compile(rb"[0-9]{1,20}")


class Group:
    """The names and keys of one group."""

    def __init__(self, name: bytes, uid: int, patterns: Iterable[bytes]) -> None:
        """The patterns are those of its jobs. Raises PacketRefused `bad-name`."""
        self.uid = uid
        self.key = b"!/cred//%d//workers/%b" % (uid, name)
        """Of the members' messages."""
        self.members = b"%d/%b.*" % (uid, name)
        """The pattern of the members' names, and of some others."""
        self.presence = PRESENCE + self.members
        self._member = re.compile(rb"%b\.[0-9a-f]{%d}" % (re.escape(name), 2 * ID_BYTES))
        self._name = name
        jobs = blake2b(b"\0".join(sorted(set(patterns))), digest_size=8).hexdigest().encode()
        self.hello = _HELLO + jobs
        """What a member says when it has joined."""
        self.here = _HERE + jobs
        """What the others say then."""
        try:
            check_name(self.member_name(bytes(ID_BYTES)))
        except Refusal as fault:
            raise PacketRefused(fault.code, f"in a group, {fault.text}") from None

    def member_name(self, member_id: bytes) -> bytes:
        """The name of the member with these `ID_BYTES`."""
        return b"%b.%b" % (self._name, member_id.hex().encode())

    def has_member(self, uid: int, name: bytes) -> bool:
        """Whether this is the name of a member."""
        return uid == self.uid and self._member.fullmatch(name) is not None


def is_hello(message: Message) -> bool:
    return message.payload.startswith(_HELLO)


def is_here(message: Message) -> bool:
    return message.payload.startswith(_HERE)


def done(place: int) -> bytes:
    """The payload that calls the job at this place done."""
    return _DONE + b"%d" % place


def parse_done(message: Message) -> int | None:
    """The place of the job that is done; None if the message says something else."""
    place = message.payload.removeprefix(_DONE)
    return int(place) if message.payload.startswith(_DONE) and _PLACE.fullmatch(place) else None
