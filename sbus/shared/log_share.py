"""A user's share of the ordered log: what it put in front of each worker in the present round.

A *round* of a worker ends when it has caught up so far that whoever waited for it is let go. In a
round that several users contend for, each may append as many bytes as the others; what a batch put
beyond that is paid back in the next rounds. So a user gets the same of a worker that is behind,
however many connections on however many other workers it has.

    in a round with a share:   a user appends only while  bytes < share
    bytes at the next round  = max(0, bytes - share), at most a window

Words of the user's account, read and written under the lock. Each is right by itself: a holder that
dies leaves at worst a batch uncounted. This module does not know when a round ends.
"""

_ROUND = 0
_BYTES = 1
_CONTENDED = 2  # the last round in which this user was counted as a contender
WORDS_PER_DESTINATION = 3


class LogShare:
    """One user's, in `words`: three for each worker."""

    __slots__ = ("_words",)

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def appended_bytes(self, worker: int, number: int, share: int, window: int) -> int:
        """What this user has put in front of a worker in its round of this number."""
        words, at = self._words, WORDS_PER_DESTINATION * worker
        passed = number - words[at + _ROUND]
        if passed:
            words[at + _ROUND] = number
            left = words[at + _BYTES] - share * passed if share else 0
            words[at + _BYTES] = min(max(0, left), window)
        return int(words[at + _BYTES])

    def add(self, worker: int, more: int) -> None:
        """Count appended bytes, in the round of which was last asked."""
        self._words[WORDS_PER_DESTINATION * worker + _BYTES] += more

    def contends(self, worker: int, number: int) -> bool:
        """Whether this user waits for a worker for the first time in its round of this number."""
        at = WORDS_PER_DESTINATION * worker + _CONTENDED
        if self._words[at] == number:
            return False
        self._words[at] = number
        return True
