"""Which secret messages a client may receive: the one place that compares ids.

The pattern index finds for a secret key every client that may be meant. Each of them, as the
*secret recipient* of its own ids, then decides whether the key names another's. An outbox without a
secret recipient gets no secret message.

A process id belongs to a client only while the process that connected lives. So a key that names
one leads to a guard, which asks the kernel at each message: when the process ends, no route has to
be found and dropped, and no message comes too late.

A connection that a child inherited is the child's, too. If the process then executes a set-user-id
or set-group-id program, it is another user's, and a secret that is for that program must not reach
the child. So where a key names a process but not its user and group, the guard compares those, too:
at the first of the process's connections that a message goes to, because that takes some 30 us.
The user decides how many groups its process has, and so how long that takes. While its time for
that is spent, a message for the process is dropped, like one that there is no time to deliver.

An id that the kernel could not translate belongs to nobody: it is neither named nor meant.
"""

import os
from collections.abc import Callable

from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.send_times import SendTimeSpent
from sbus.errors import Misbehaviour, Refusal
from sbus.protocol.secret_keys import Ids, ids_of
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import PeerProcess
from sbus.unix.user_namespace import untranslated_ids


class ProcessLifetimeGuard:
    """Delivers to `outbox` for as long as its client's process lives. Takes its place in routes."""

    __slots__ = ("_process", "outbox", "slot_at")

    def __init__(self, outbox: Outbox, process: PeerProcess) -> None:
        self.outbox = outbox
        self.slot_at = outbox.slot_at
        self._process = process

    @property
    def is_closed(self) -> bool:
        return self.outbox.is_closed or self._process.has_ended()

    def deliver(self, packet: bytes, publisher_account: int) -> None:
        if self._is_anothers(packet):
            self.outbox.retract(packet)
        else:
            self.outbox.deliver(packet, publisher_account)

    def leave_out(self, packet: bytes, publisher_account: int) -> None:
        """Look at the process only if the message is kept: looking takes longer than delivering."""
        if self.outbox.keeps_left_out(publisher_account) and self._is_anothers(packet):
            self.outbox.retract(packet)
        else:
            self.outbox.leave_out(packet, publisher_account)

    def _is_anothers(self, packet: bytes) -> bool:
        """Whether the process id is not the client's any more, now that this message comes."""
        return self._process.has_ended()


_Ids = tuple[int, int] | None
LookInTime = Callable[[int, Callable[[], _Ids]], _Ids]
"""As `SendTimes.look`."""


class SavedIds:
    """The saved ids of the process that the present message is for. Of one worker."""

    __slots__ = ("_found", "_look_in_time", "_packet", "_pid")

    def __init__(self, look_in_time: LookInTime) -> None:
        self._look_in_time = look_in_time
        self._packet, self._pid = b"", 0
        self._found: _Ids = None

    def find(self, packet: bytes, process: PeerProcess, pid: int, account_place: int) -> _Ids:
        """As `PeerProcess.saved_ids`, of the process with this id and of the user with this
        account; SendTimeSpent if there is no time to look."""
        if packet is not self._packet or pid != self._pid:
            self._found = self._look_in_time(account_place, process.saved_ids)
            self._packet, self._pid = packet, pid
        return self._found


class ProcessIdentityGuard(ProcessLifetimeGuard):
    """The same, for keys that do not name the user and the group of the process."""

    __slots__ = ("_credentials", "_saved_ids")

    def __init__(
        self, outbox: Outbox, process: PeerProcess, credentials: Credentials, saved_ids: SavedIds
    ) -> None:
        super().__init__(outbox, process)
        self._credentials = credentials
        self._saved_ids = saved_ids

    def deliver(self, packet: bytes, publisher_account: int) -> None:
        try:
            super().deliver(packet, publisher_account)
        except SendTimeSpent:
            self.outbox.leave_out(packet, publisher_account, may_keep=False)

    def leave_out(self, packet: bytes, publisher_account: int) -> None:
        try:
            super().leave_out(packet, publisher_account)
        except SendTimeSpent:
            self.outbox.leave_out(packet, publisher_account, may_keep=False)

    def _is_anothers(self, packet: bytes) -> bool:
        return self._has_changed_user(packet) or super()._is_anothers(packet)

    def _has_changed_user(self, packet: bytes) -> bool:
        own = self._credentials
        if own.uid == 0:
            return False  # it gave up its rights
        place = self.outbox.account_place
        saved_ids = self._saved_ids.find(packet, self._process, own.pid, place)
        return saved_ids is not None and saved_ids != (own.gid, own.uid)


class SecretRecipient:
    """A client as the owner of its ids. Owns `process`."""

    __slots__ = ("_credentials", "_guard", "_outbox", "_own", "_process")

    def __init__(self, credentials: Credentials, outbox: Outbox, process: PeerProcess) -> None:
        gid_unknown, uid_unknown = untranslated_ids()
        self._own = (
            None if credentials.gid == gid_unknown else b"%d" % credentials.gid,
            None if credentials.uid == uid_unknown else b"%d" % credentials.uid,
            b"%d" % credentials.pid if credentials.pid else None,
        )
        """As keys spell them; None for an id that the kernel could not translate."""
        self._credentials = credentials
        self._process = process
        self._outbox = outbox
        self._guard = ProcessLifetimeGuard(outbox, process)

    def owns(self, ids: Ids) -> bool:
        """Whether none of these ids, where they are named, is another's."""
        (gid, uid, pid), own = ids, self._own
        return (
            (not gid or gid == own[0]) and (not uid or uid == own[1]) and (not pid or pid == own[2])
        )

    def is_meant(self, ids: Ids) -> bool:
        """The same, and a process that they name has not ended."""
        return self.owns(ids) and not (ids[2] and self._process.has_ended())

    def check_ids(self, pattern: bytes) -> None:
        """Accept a secret pattern that names no id of another's.

        Raises Misbehaviour `not-yours`.
        """
        if not self.owns(ids_of(pattern)):
            raise Misbehaviour("not-yours", "the pattern names a group, user or process not yours")

    def watch_process(self) -> None:
        """Get ready to receive messages that name a process. Raises Refusal `too-many-secret`."""
        try:
            self._process.watch()
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise Refusal("too-many-secret", f"a process cannot be watched: {why}") from error

    def check_process(self, pattern: bytes) -> None:
        """Accept a secret pattern, unless it names a process that has ended.

        Raises Misbehaviour `not-yours`.
        """
        if ids_of(pattern)[2] and self._process.has_ended():
            raise Misbehaviour("not-yours", "the process that connected has ended")

    def outbox_for(self, ids: Ids, saved_ids: SavedIds) -> Outbox | ProcessLifetimeGuard | None:
        """What takes messages whose key names these ids; None where one of them is another's."""
        if not self.is_meant(ids):
            return None
        if not ids[2]:
            return self._outbox
        if ids[0] and ids[1]:
            return self._guard
        return ProcessIdentityGuard(self._outbox, self._process, self._credentials, saved_ids)

    def close(self) -> None:
        """The client leaves."""
        self._process.close()
