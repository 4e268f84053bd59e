"""Which clients of a bus have names, and what is told of that, as docs/protocol.md has it.

The models of all clients share `Members`. It says exactly who has a name as long as no client asks
for a name, or gives it up, while the bus may still have to do what another one has asked about it.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

PRESENCE = b"!/presence/"
JOIN, LEAVE, MEMBERS = b"!/join", b"!/leave", b"!/members"
WILL_BYTES_MAX = 4_096
NAME_BYTES = 256
"""That a name takes of a client's room, besides its length and that of the will."""
_NAME_TEXT = rb"[A-Za-z0-9._:@+-]"
_NAME = re.compile(rb"%b{1,64}" % _NAME_TEXT)
_PATTERN = re.compile(rb"(?:\*|0|[1-9][0-9]{0,9})/(?:%b{0,64}\*|%b{1,64})" % ((_NAME_TEXT,) * 2))
_MEMBER = re.compile(rb"([0-9]+) (%b+) ([0-9]+) ([0-9]+) ([0-9]+)" % _NAME_TEXT)
_CHANGE = re.compile(
    rb"MSG !/presence/([0-9]+)/(%b+)\0(?:join|(leave)) ([0-9]+) ([0-9]+) ([0-9]+)(?(3) ([a-z-]+))"
    % _NAME_TEXT
)


class Member(NamedTuple):
    """A client that has a name; all as texts of digits, but for the name."""

    uid: bytes
    name: bytes
    client: bytes
    gid: bytes
    pid: bytes

    @property
    def key(self) -> bytes:
        return name_key(self.uid, self.name)

    def joins(self) -> bytes:
        return b"MSG %b\0join %b" % (self.key, self._ids())

    def leaves(self, reason: bytes) -> bytes:
        return b"MSG %b\0leave %b %b" % (self.key, self._ids(), reason)

    def _ids(self) -> bytes:
        return b" ".join((self.client, self.gid, self.pid))


class Change(NamedTuple):
    """What a message tells of a client."""

    member: Member
    reason: bytes
    """For which it leaves; empty if it joins."""


def parse_change(packet: bytes) -> Change | None:
    """None if the packet tells of no name."""
    found = _CHANGE.fullmatch(packet)
    if found is None:
        return None
    uid, name, _, *ids, reason = found.groups()
    return Change(Member(uid, name, *ids), reason or b"")


Members = dict[bytes, Member]
"""By their keys."""


class Question(NamedTuple):
    """What a client has asked with `!/members`."""

    pattern: bytes
    behind: bytes
    """The member behind which those that are wanted are, or nothing."""
    client: bytes
    own: Member | None
    """The client itself, if it had a name."""

    def wants(self, member: Member) -> bool:
        uid, name = self.pattern.split(b"/")
        if self.behind and (int(member.uid), member.name) <= _place_of(self.behind):
            return False
        is_prefix = name.endswith(b"*")
        fits = member.name.startswith(name[:-1]) if is_prefix else member.name == name
        return fits and uid in (b"*", member.uid)


def _place_of(text: bytes) -> tuple[int, bytes]:
    uid, name = text.split(b"/")
    return int(uid), name


def name_key(uid: bytes, name: bytes) -> bytes:
    return b"%b%b/%b" % (PRESENCE, uid, name)


def tells_of_name(packet: bytes) -> bool:
    return packet.startswith(b"MSG " + PRESENCE)


def is_name(text: bytes) -> bool:
    return _NAME.fullmatch(text) is not None


def is_name_pattern(text: bytes) -> bool:
    return _PATTERN.fullmatch(text) is not None


class Names:
    """Who has names, as messages in the total order tell."""

    def __init__(self) -> None:
        self.now: set[Member] = set()
        self.begin_round()

    def begin_round(self) -> None:
        self.any_time = set(self.now)
        """Who had a name at some time of this round."""
        self.lasting = set(self.now)
        """Who had it all the time."""

    def follow(self, packet: bytes) -> None:
        """The next message that tells of a name."""
        change = parse_change(packet)
        assert change is not None, packet
        member = change.member
        if change.reason:
            assert member in self.now, f"{packet!r}: the client does not have the name"
            self.now.remove(member)
            self.lasting.discard(member)
        else:
            assert all(it.key != member.key for it in self.now), f"{packet!r}: the name is taken"
            self.now.add(member)
            self.any_time.add(member)


def listed_members(reply: bytes) -> list[Member]:
    """Those in a reply to `!/members`, which has to have them in their order."""
    first, *lines = reply.partition(b"\0")[2].split(b"\n")
    assert first == b"end", reply
    found = []
    for line in lines:
        fields = _MEMBER.fullmatch(line)
        assert fields is not None, line
        found.append(Member(*fields.groups()))
    places = [(int(member.uid), member.name) for member in found]
    assert places == sorted(set(places)), reply
    return found


def check_list(
    question: Question,
    reply: bytes,
    lasting: Iterable[Member],
    any_time: Iterable[Member],
    may_see: Callable[[bytes], bool],
) -> None:
    """A list has those who had a name all the time, and nobody who had none at any time. It has
    the client that asked if that had a name then."""

    def wanted(members: Iterable[Member]) -> set[Member]:
        return {it for it in members if question.wants(it) and may_see(it.key)}

    found = set(listed_members(reply))
    possible, sure = wanted(any_time), wanted(lasting)
    assert sure <= found <= possible, f"{question}: {found}, not {sure} and some of {possible}"
    own = {it for it in found if it.client == question.client}
    assert own == wanted([question.own] if question.own else []), f"{question}: {found}"
