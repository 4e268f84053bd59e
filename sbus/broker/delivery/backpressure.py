"""Backpressure: a client that has no room, and the publishers that wait until it has.

A client that chose to block has two things. Its *back-pressure rule* stands in every worker's
pattern index beside its patterns, so a publisher's worker finds with the route which clients must
have room. And it has a place in the stall table, where its worker notes, under the lock, that it
has none. A publisher's worker that finds both keeps the message and reads no more from that
publisher.

Only publishers of the client's own user are held, unless an administrator's rule lets the client
hold everybody, and only while that user has held time left. A message that may not be held finds no
room and is discarded.

This module does not know how much room a client has, nor what becomes of a publisher that waits.
"""

import struct
import time
from collections.abc import Callable

from sbus.broker.config.access_policy import AccessProfile, decode_rule_set, encode_rule_set
from sbus.protocol.secret_keys import Ids
from sbus.shared.accounts import Account
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.shared.worker_statistics import STALLS, WorkerStatistics
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import untranslated_ids

_RULE = struct.Struct("<IIIIII?B")
"""Version, place, account, gid, uid, pid, everybody, bytes of rules."""


ANYBODY = -1
NOBODY = -2
"""Where a uid is expected."""


class BackpressureRule:
    """What every worker knows of a client that may hold publishers back. `profile` is what the
    access rules say about it, and `version` how often that has changed: two of one client are never
    the same, so that the end of one is not taken for that of another."""

    __slots__ = ("account", "client", "gid", "pid", "place", "profile", "uid", "version")

    def __init__(
        self,
        client: int,
        place: int,
        account: int,
        own: Credentials,
        profile: AccessProfile,
        version: int = 0,
    ) -> None:
        self.version = version
        self.client = client
        self.place = place
        self.account = account
        self.gid = own.gid
        self.uid = own.uid
        self.pid = own.pid
        self.profile = profile

    @property
    def holds(self) -> int:
        """The user whose publishers may be held, or `ANYBODY`, or `NOBODY`.

        Who cannot be told from others, because the kernel could not translate the uid, is nobody.
        """
        if self.profile.may_block_others:
            return ANYBODY
        return NOBODY if self.uid == untranslated_ids()[1] else self.uid

    def changed_to(self, profile: AccessProfile) -> "BackpressureRule | None":
        """The next version, with this profile; None where others would see no difference."""
        own = Credentials(gid=self.gid, uid=self.uid, pid=self.pid)
        same = BackpressureRule(self.client, self.place, self.account, own, profile, self.version)
        if same.pack() == self.pack():
            return None
        same.version += 1
        return same

    def may_be_meant(self, named: Ids) -> bool:
        """Whether a secret key that names these ids does not name another's."""
        return all(
            not one or one == b"%d" % own
            for one, own in zip(named, (self.gid, self.uid, self.pid), strict=True)
        )

    def pack(self) -> bytes:
        """All but the client's number, for the journal."""
        rules = encode_rule_set(self.profile.subscribe)
        head = _RULE.pack(
            self.version,
            self.place,
            self.account,
            self.gid,
            self.uid,
            self.pid,
            self.profile.may_block_others,
            len(rules),
        )
        return head + rules


def unpack_rule(client: int, data: bytes) -> tuple[BackpressureRule, bytes]:
    """What another worker packed in front of a pattern, and the pattern."""
    version, place, account, gid, uid, pid, everybody, rules_bytes = _RULE.unpack_from(data)
    end = _RULE.size + rules_bytes
    own = Credentials(gid=gid, uid=uid, pid=pid)
    profile = AccessProfile(
        publish=0, subscribe=decode_rule_set(data[_RULE.size : end]), may_block_others=everybody
    )
    return BackpressureRule(client, place, account, own, profile, version), data[end:]


class Backpressure:
    """The same as its own worker has it, for the client's outbox. `on_spent` is called when the
    client would hold a publisher, but its user has no time left for it, `on_stall` with whether it
    is stalled when that changes."""

    __slots__ = (
        *("_account", "_on_spent", "_on_stall", "_memory", "_stalls", "_statistics"),
        *("rule", "stalled"),
    )

    def __init__(
        self,
        rule: BackpressureRule,
        account: Account,
        memory: SharedMemory,
        stalls: StallTable,
        statistics: WorkerStatistics,
        on_spent: Callable[[], None],
        on_stall: Callable[[bool], None],
    ) -> None:
        self.rule = rule
        self._account = account
        self._memory = memory
        self._stalls = stalls
        self._statistics = statistics
        self._on_spent = on_spent
        self._on_stall = on_stall
        self.stalled = False
        """Whether publishers are being held back, or would be."""

    def may_hold(self, publisher_uid: int) -> bool:
        """Whether this user's publishers may be held back for this client."""
        if self.rule.holds not in (publisher_uid, ANYBODY):
            return False
        if self._account.held_left_ns(time.monotonic_ns()):
            return True
        self._on_spent()
        return False

    def stall(self) -> None:
        """The client has no room."""
        if not self.stalled:
            self.stalled = True
            self._statistics.counts[STALLS] += 1
            with self._memory.lock:
                self._stalls.stall(self.rule.place, self.rule.client)
            self._on_stall(True)

    def resume(self) -> None:
        """The client has room again, or needs none any more."""
        if self.stalled:
            self.stalled = False
            with self._memory.lock:
                waiters = self._stalls.clear(self.rule.place)
            self._memory.wake(waiters)
            self._on_stall(False)

    def release_waiters(self) -> None:
        """The client gave a pattern up: who waits for it may not have to any more."""
        if self.stalled:
            with self._memory.lock:
                waiters = self._stalls.release(self.rule.place)
            self._memory.wake(waiters)
