"""A user's share of the ordered log: what it has appended for each worker in the present round.

A *round* of a worker ends when the worker has walked far enough to release its waiters. When
several users contend for a round, each may append the same number of bytes; an excess is paid back
in the next rounds. So users get equal shares of a worker that is behind, however many connections
they have and on however many workers.

    in a round with a share:   a user appends only while  bytes < share
    bytes at the next round  = max(0, bytes - share), at most a window

These are words of the user's account, read and written under the lock. Each is valid by itself: a
worker that dies in a critical section leaves at most one publish batch uncounted.
"""

_ROUND = 0
_BYTES = 1
_CONTENDED = 2  # the last round in which this user was counted as a contender
WORDS_PER_DESTINATION = 3


class LogShare:
    """The share of one user, in `words`: three for each worker."""

    __slots__ = ("_words",)

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def appended_bytes(self, worker: int, number: int, share: int, window: int) -> int:
        """What this user has appended for a worker in the round with this number."""
        words, at = self._words, WORDS_PER_DESTINATION * worker
        passed = number - words[at + _ROUND]
        if passed:
            words[at + _ROUND] = number
            left = words[at + _BYTES] - share * passed if share else 0
            words[at + _BYTES] = min(max(0, left), window)
        return int(words[at + _BYTES])

    def add(self, worker: int, more: int) -> None:
        """Count appended bytes, in the round that `appended_bytes` was last called with."""
        self._words[WORDS_PER_DESTINATION * worker + _BYTES] += more

    def contends(self, worker: int, number: int) -> bool:
        """Whether this user waits for a worker for the first time in this round of it."""
        at = WORDS_PER_DESTINATION * worker + _CONTENDED
        if self._words[at] == number:
            return False
        self._words[at] = number
        return True
