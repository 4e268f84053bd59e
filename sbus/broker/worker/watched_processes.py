"""The processes of clients that a worker watches for secret messages, each with a descriptor."""

from collections import Counter

from sbus.broker.delivery.secret_recipient import SecretRecipient
from sbus.errors import Refusal
from sbus.unix.open_files import watched_processes_max


class WatchedProcesses:
    """Of one worker. A user has as many watched as it leaves to others."""

    def __init__(self) -> None:
        self._uids: dict[SecretRecipient, int] = {}
        self._by_user: Counter[int] = Counter()
        self._max = watched_processes_max()

    def add(self, recipient: SecretRecipient, uid: int) -> None:
        """Watch the process of a user's client, unless that is done. Raises Refusal."""
        if recipient in self._uids:
            return
        if self._by_user[uid] >= self._max - len(self._uids):
            text = "your user has as many processes watched as it leaves to others"
            raise Refusal("too-many-secret", text)
        self._watch(recipient, uid)

    def restore(self, recipient: SecretRecipient, uid: int) -> None:
        """Watch the process of a client for which that was done before, at another worker or in
        another order: the user's share does not matter. Raises Refusal."""
        if recipient in self._uids:
            return
        if len(self._uids) >= self._max:
            text = f"one worker may watch {self._max} processes for secret messages, and not more"
            raise Refusal("too-many-secret", text)
        self._watch(recipient, uid)

    def _watch(self, recipient: SecretRecipient, uid: int) -> None:
        recipient.watch_process()
        self._uids[recipient] = uid
        self._by_user[uid] += 1

    def discard(self, recipient: SecretRecipient) -> None:
        """The client leaves, whether its process is watched or not."""
        uid = self._uids.pop(recipient, None)
        if uid is not None:
            self._by_user[uid] -= 1
            if not self._by_user[uid]:
                del self._by_user[uid]
