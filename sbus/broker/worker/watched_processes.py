"""The processes of clients that a worker watches for secret messages, each with a descriptor."""

from collections import Counter

from sbus.broker.delivery.secret_recipient import SecretRecipient
from sbus.errors import Refusal
from sbus.unix.open_files import watched_processes_max


class WatchedProcesses:
    """Of one worker. A user has as many watched as it leaves to others."""

    def __init__(self) -> None:
        self._accounts: dict[SecretRecipient, int] = {}
        self._by_user: Counter[int] = Counter()
        self._max = watched_processes_max()

    def add(self, recipient: SecretRecipient, account: int) -> None:
        """Watch the process of a user's client, unless that is done. Raises Refusal."""
        if recipient in self._accounts:
            return
        if self._by_user[account] >= self._max - len(self._accounts):
            text = "your user has as many processes watched as it leaves to others"
            raise Refusal("too-many-secret", text)
        self._watch(recipient, account)

    def restore(self, recipient: SecretRecipient, account: int) -> None:
        """Watch the process of a client for which that was done before, at another worker or in
        another order: the user's share does not matter. Raises Refusal."""
        if recipient in self._accounts:
            return
        if len(self._accounts) >= self._max:
            text = f"one worker may watch {self._max} processes for secret messages, and not more"
            raise Refusal("too-many-secret", text)
        self._watch(recipient, account)

    def _watch(self, recipient: SecretRecipient, account: int) -> None:
        recipient.watch_process()
        self._accounts[recipient] = account
        self._by_user[account] += 1

    def discard(self, recipient: SecretRecipient) -> None:
        """The client leaves, whether its process is watched or not."""
        account = self._accounts.pop(recipient, None)
        if account is not None:
            self._by_user[account] -= 1
            if not self._by_user[account]:
                del self._by_user[account]
