"""A user's share of the room in the subscription table: what its requests have journalled since the
last compaction.

A user takes at most as much of the room as it leaves to others. So clients that change patterns
faster than the table is compacted wait for the compaction, and other users have room meanwhile.

    a user's request is journalled only while  bytes used <= bytes left

These are words of the user's account, read and written under the lock. A worker that dies in a
critical section has counted a request at most that is not journalled.
"""

_EPOCH = 0
_BYTES = 1
TABLE_SHARE_WORDS = 2


class TableShare:
    """The share of one user, in `words`."""

    __slots__ = ("_words",)

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def used_bytes(self, epoch: int) -> int:
        """What this user has used of the table in this epoch."""
        return int(self._words[_BYTES]) if self._words[_EPOCH] == epoch else 0

    def add(self, epoch: int, more_bytes: int) -> None:
        """Count what is journalled in this epoch."""
        self._words[_BYTES] = self.used_bytes(epoch) + more_bytes
        self._words[_EPOCH] = epoch
