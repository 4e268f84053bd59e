"""A user's share of the ordered log: what it has appended for each worker in the present round.

A *round* of a worker ends when the worker has walked far enough to release its waiters. When
several users contend for a round, each may append the same number of bytes; an excess is paid back
in the next rounds. So users get equal shares of a worker that is behind, however many connections
they have and on however many workers.

    in a round with a share:   a user appends only while  bytes < share
    bytes at the next round  = max(0, bytes - share), at most 16 windows

Bytes say little about work, so a worker measures the *price* of each user's bytes: the work of one
as it compares with the average of all that it walks. What counts is bytes times price. So equal
shares are equal work: a user whose messages go to 500 clients has few of them on their way, and
another user's messages have room.

These are words of the user's account, read and written under the lock, but for the price, which the
destination writes at any time. Each is valid by itself: a
worker that dies in a critical section leaves at most one publish batch uncounted.
"""

_ROUND = 0
_BYTES = 1
_CONTENDED = 2  # the last round in which this user was counted as a contender
_PRICE = 3  # in parts of `PRICE_UNIT`; 0 until it is known
WORDS_PER_DESTINATION = 4
PRICE_UNIT = 256
_PRICE_MAX = 64 * PRICE_UNIT
DEBT_WINDOWS_MAX = 16
"""What is paid back later: some 16 ms of a worker's time."""


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
            words[at + _BYTES] = min(max(0, left), DEBT_WINDOWS_MAX * window)
        return int(words[at + _BYTES])

    def add(self, worker: int, more: int) -> None:
        """Count appended bytes, in the round that `appended_bytes` was last called with."""
        words, at = self._words, WORDS_PER_DESTINATION * worker
        words[at + _BYTES] += more * (words[at + _PRICE] or PRICE_UNIT) // PRICE_UNIT

    def note_price(self, worker: int, price: float) -> None:
        """Note what this user's bytes cost a worker lately, where 1 is the average."""
        words, at = self._words, WORDS_PER_DESTINATION * worker + _PRICE
        known = words[at] or PRICE_UNIT
        noted = min(int(price * PRICE_UNIT), _PRICE_MAX)
        words[at] = max(1, (3 * known + noted) // 4)

    def contends(self, worker: int, number: int) -> bool:
        """Whether this user waits for a worker for the first time in this round of it."""
        at = WORDS_PER_DESTINATION * worker + _CONTENDED
        if self._words[at] == number:
            return False
        self._words[at] = number
        return True
