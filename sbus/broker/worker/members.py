"""Members: the clients that have names, as the records of the subscription table say.

What the table has of a name does not depend on the worker that serves the client. So a move, or a
worker's death, changes nothing here.

    record of a name that is taken = UID NAME SLOT GID PID OWN-UID ACCOUNT NUL will
    record of one that is given back = UID NAME

UID is that of the client's user, OWN-UID that of its process. The slot tells a worker whether the
front still has the client (`inheritance`).
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from sbus.protocol.packets import NUL
from sbus.protocol.presence import Member
from sbus.protocol.presence_keys import NamePattern
from sbus.shared.subscription_table import NAME_GIVEN_BACK, NAME_TAKEN, Record

_Key = tuple[int, bytes]
"""User and name."""


class NamedClient(NamedTuple):
    """A member with what the bus needs when it goes."""

    member: Member
    slot: int
    own_uid: int
    """Another one than its user's if it is a subordinate id."""
    account_place: int
    """Of its user's account, until that is closed."""
    will: bytes
    """Empty if it leaves none."""

    @property
    def key(self) -> _Key:
        return self.member.uid, self.member.name

    def taken(self, worker: int) -> Record:
        """The record that the client has its name."""
        own = self.member
        ids = own.gid, own.pid, self.own_uid, self.account_place
        data = b"%d %b %d %d %d %d %d\0%b" % (*self.key, self.slot, *ids, self.will)
        return Record(NAME_TAKEN, True, worker, own.client, data)

    def given_back(self, worker: int) -> Record:
        """The record that it has it no more."""
        return Record(NAME_GIVEN_BACK, True, worker, self.member.client, b"%d %b" % self.key)


def named_client(client: int, data: bytes) -> NamedClient:
    """What the record of a name that is taken says."""
    ids, _, will = data.partition(NUL)
    uid, name, *numbers = ids.split(b" ")
    slot, gid, pid, own_uid, account = map(int, numbers)
    return NamedClient(Member(int(uid), name, client, gid, pid), slot, own_uid, account, will)


class Members:
    """As one worker has read them in the table.

    Invariant: `_order` has the keys of `_by_key`, sorted.
    """

    def __init__(self) -> None:
        self._by_key: dict[_Key, Member] = {}
        self._order: list[_Key] = []

    def get(self, uid: int, name: bytes) -> Member | None:
        return self._by_key.get((uid, name))

    def apply(self, record: Record) -> None:
        """Follow a record about a name, maybe once more."""
        if record.kind == NAME_TAKEN:
            named = named_client(record.client, record.pattern)
            if named.key not in self._by_key:
                self._order.insert(bisect_left(self._order, named.key), named.key)
            self._by_key[named.key] = named.member
            return
        uid, _, name = record.pattern.partition(b" ")
        key = int(uid), name
        member = self._by_key.get(key)
        if member is not None and member.client == record.client:
            del self._by_key[key]
            del self._order[bisect_left(self._order, key)]

    def matching(self, pattern: NamePattern, after: _Key | None = None) -> Iterator[Member]:
        """The members with such names, in the order of their users and names, behind this one."""
        at: _Key = (pattern.uid or 0, pattern.name)
        if after is not None:
            at = max(at, _behind(after))
        while (index := bisect_left(self._order, at)) < len(self._order):
            uid, name = key = self._order[index]
            if pattern.uid not in (None, uid):
                break
            if name == pattern.name or (pattern.is_prefix and name.startswith(pattern.name)):
                yield self._by_key[key]
                at = _behind(key)
            else:
                at = (uid, pattern.name) if name < pattern.name else (uid + 1, pattern.name)


def _behind(key: _Key) -> _Key:
    """The next key that there may be."""
    uid, name = key
    return uid, name + NUL
