"""What a client may be told in secret: the rule of every id, at the only place that knows it.

A *holder* is a client as the holder of its ids. The pattern index finds for a secret key everybody
who may have meant it; the holder then says, of its own ids and nothing else, whether the key names
another's. A client without a holder gets no secret message.

A process id is the holder's only as long as the process that connected lives. So a key that names
one leads to the holder's guard, and that asks the kernel at each message: nothing has to be taken
back, and nothing can come too late, when the process ends.

An id that the kernel could not translate belongs to nobody: it is neither named nor meant.

This module does not know how patterns are stored, nor where else a message goes.
"""

import os

from sbus.broker.delivery.outbox import Outbox
from sbus.errors import Misbehaviour, Refusal
from sbus.protocol.secret_keys import Ids, ids_of
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import PeerProcess, untranslated_ids


class ProcessLifetimeGuard:
    """Deliveries to one client for as long as its process lives. Stands in a route for `outbox`."""

    __slots__ = ("_process", "outbox")

    def __init__(self, outbox: Outbox, process: PeerProcess) -> None:
        self.outbox = outbox
        self._process = process

    @property
    def is_closed(self) -> bool:
        """Whether nothing would be accepted for this client."""
        return self.outbox.is_closed or self._process.has_ended()

    def deliver(self, packet: bytes, publisher_uid: int) -> None:
        """Accept a message for this client, if its key still names it."""
        if self._process.has_ended():
            self.outbox.retract(packet)
        else:
            self.outbox.deliver(packet, publisher_uid)


class SecretRecipient:
    """One client's ids. Owns `process`."""

    __slots__ = ("_gid", "_guard", "_outbox", "_pid", "_process", "_uid")

    def __init__(self, credentials: Credentials, outbox: Outbox, process: PeerProcess) -> None:
        gid_unknown, uid_unknown = untranslated_ids()
        self._gid = _spelled(credentials.gid, gid_unknown)
        self._uid = _spelled(credentials.uid, uid_unknown)
        self._pid = _spelled(credentials.pid, 0)
        self._process = process
        self._outbox = outbox
        self._guard = ProcessLifetimeGuard(outbox, process)

    def check_own(self, pattern: bytes) -> None:
        """Accept a secret pattern that names no id but this client's.

        Raises Misbehaviour `not-yours`.
        """
        if not self._are_own(ids_of(pattern)):
            raise Misbehaviour("not-yours", "the pattern names a group, user or process not yours")

    def watch(self) -> None:
        """Get ready to receive messages that name a process. Raises Refusal `too-many-secret`."""
        try:
            self._process.watch()
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise Refusal("too-many-secret", f"the bus cannot watch your process: {why}") from error

    def check_alive(self, pattern: bytes) -> None:
        """Accept a secret pattern, unless it names a process that has ended.

        Raises Misbehaviour `not-yours`.
        """
        if ids_of(pattern)[2] and self._process.has_ended():
            raise Misbehaviour("not-yours", "the process that connected has ended")

    def recipient(self, named: Ids) -> Outbox | ProcessLifetimeGuard | None:
        """Where messages go whose key names these ids; None when it names another's."""
        if not self._are_own(named):
            return None
        if not named[2]:
            return self._outbox
        return None if self._process.has_ended() else self._guard

    def has_ids(self, named: Ids) -> bool:
        """Whether a key that names these names no other's, as far as they do not change."""
        return self._are_own(named)

    def close(self) -> None:
        """The client leaves."""
        self._process.close()

    def _are_own(self, ids: Ids) -> bool:
        gid, uid, pid = ids
        return (
            (not gid or gid == self._gid)
            and (not uid or uid == self._uid)
            and (not pid or pid == self._pid)
        )


def _spelled(number: int, unknown: int) -> bytes | None:
    """An id as keys spell it; None when it is the kernel's word for one that it cannot tell."""
    return None if number == unknown else b"%d" % number
