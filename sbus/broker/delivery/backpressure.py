"""Back-pressure: a client that has no room holds back the publishers of what it is sent.

A client that chose `block` has two things. Its *back-pressure rule* is in every worker's
pattern index beside its patterns, so a publisher's worker finds with the route which clients must
have room. And it has a place in the stall table, where its worker notes, under the lock, that it
has none. A publisher's worker that finds both puts the message off and reads no more from that
publisher.

Only publishers of the client's own user are held, unless an access rule lets the client hold
everybody, and only while that user has held time left. A message whose publisher may not be held
is dropped when it finds no room.
"""

import struct
import time
from typing import Protocol

import msgspec

from sbus.broker.config.access_policy import AccessProfile, decode_rule_set, encode_rule_set
from sbus.protocol.secret_keys import Ids
from sbus.shared.accounts import Account
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.shared.worker_statistics import STALLS, WorkerStatistics
from sbus.unix.credentials import Credentials
from sbus.unix.user_namespace import untranslated_ids

_RULE = struct.Struct("<IIIIII?B")
"""Version, place, account, gid, uid, pid, everybody, bytes of access rules."""

ANYBODY = -1
NOBODY = -2
"""Where the place of an account is expected."""


class BackpressureRule(msgspec.Struct, frozen=True, eq=False):
    """What every worker knows of a client that may hold publishers back."""

    client: int
    place: int
    account_place: int
    credentials: Credentials
    profile: AccessProfile
    """What the access rules say about it."""
    version: int = 0
    """How often the profile has changed. Two rules of one client are never the same, so that the
    end of one is not taken for that of another."""

    @property
    def holds(self) -> int:
        """The account of the user whose publishers may be held, or `ANYBODY`, or `NOBODY`.

        A uid that the kernel could not translate may be anyone's, and holds nobody.
        """
        if self.profile.may_block_others:
            return ANYBODY
        is_unknown = self.credentials.uid == untranslated_ids()[1]
        return NOBODY if is_unknown else self.account_place

    def changed_to(self, profile: AccessProfile) -> "BackpressureRule | None":
        """The next version, with this profile; None where others would see no difference."""
        changed = msgspec.structs.replace(self, profile=profile)
        if changed.pack() == self.pack():
            return None
        return msgspec.structs.replace(changed, version=self.version + 1)

    def may_be_meant(self, named: Ids) -> bool:
        """Whether a secret key that names these ids does not name another's."""
        own = self.credentials
        return all(
            not name or name == b"%d" % number
            for name, number in zip(named, (own.gid, own.uid, own.pid), strict=True)
        )

    def pack(self) -> bytes:
        """All but the client's number, for the journal."""
        own = self.credentials
        everybody, rules = self.profile.may_block_others, encode_rule_set(self.profile.subscribe)
        whose = (self.version, self.place, self.account_place)
        return _RULE.pack(*whose, own.gid, own.uid, own.pid, everybody, len(rules)) + rules


def unpack_rule(client: int, data: bytes) -> tuple[BackpressureRule, bytes]:
    """What another worker packed in front of a pattern, and the pattern."""
    version, place, account, gid, uid, pid, everybody, rules_bytes = _RULE.unpack_from(data)
    end = _RULE.size + rules_bytes
    subscribe = decode_rule_set(data[_RULE.size : end])
    profile = AccessProfile(publish=0, subscribe=subscribe, may_block_others=everybody)
    own = Credentials(gid=gid, uid=uid, pid=pid)
    return BackpressureRule(client, place, account, own, profile, version), data[end:]


class BackpressureListener(Protocol):
    """What the worker of a client is told about its back-pressure."""

    def on_stall(self, is_stalled: bool) -> None:
        """The client has no room, or has room again."""

    def on_held_time_spent(self) -> None:
        """The client would hold a publisher, but its user has no time left for that."""


class Backpressure:
    """The back-pressure of one client, at its own worker. `account` is its user's."""

    __slots__ = (
        *("_account", "_listener", "_memory", "_stalls", "_statistics"),
        *("is_stalled", "rule"),
    )

    def __init__(
        self,
        rule: BackpressureRule,
        account: Account,
        memory: SharedMemory,
        stalls: StallTable,
        statistics: WorkerStatistics,
        listener: BackpressureListener,
    ) -> None:
        self.rule = rule
        self._account = account
        self._memory = memory
        self._stalls = stalls
        self._statistics = statistics
        self._listener = listener
        self.is_stalled = False
        """Whether publishers are being held back, or would be."""

    def replace_rule(self, rule: BackpressureRule) -> None:
        """Hold publishers by another rule from now on."""
        self.rule = rule

    def concerns(self, publisher_account: int) -> bool:
        """Whether publishers with this account may be held back for this client while there is
        time."""
        return self.rule.holds in (publisher_account, ANYBODY)

    def may_hold(self, publisher_account: int) -> bool:
        """Whether publishers with this account may be held back for this client."""
        if not self.concerns(publisher_account):
            return False
        if self._account.held_left_ns(time.monotonic_ns()):
            return True
        self._listener.on_held_time_spent()
        return False

    def stall(self) -> None:
        """The client has no room."""
        if not self.is_stalled:
            self.is_stalled = True
            self._statistics.counts[STALLS] += 1
            with self._memory.lock:
                self._stalls.stall(self.rule.place, self.rule.client)
            self._listener.on_stall(True)

    def end_stall(self) -> None:
        """The client has room again, or needs none any more."""
        if self.is_stalled:
            self.is_stalled = False
            with self._memory.lock:
                waiters = self._stalls.clear(self.rule.place)
            self._memory.wake(waiters)
            self._listener.on_stall(False)

    def release_waiters(self) -> None:
        """The client gave up a pattern: publishers that wait for it may not have to any more."""
        if self.is_stalled:
            with self._memory.lock:
                waiters = self._stalls.release(self.rule.place)
            self._memory.wake(waiters)
