"""The stall table: the clients that have no room and hold publishers back.

Every worker has a number of *places* for those of its clients that have back-pressure. While such a
client has no room, its place holds its number. A worker looks there before it appends a message
for that client; if the number is there, it joins the *waiters* of the place, and is woken when the
number is removed.

    place = number of the stalled client, or 0  |  waiters: workers to wake, one bit each
    the first word of all = how many places hold a number

These are fixed words and not records of the journal, because they may change with every message.
They are written under the lock; a decision made without it has to be checked under it. Each word is
valid by itself: `reap` corrects what a worker leaves when it dies in a critical section.
"""

from sbus.limits import Limits

_STALLED = 0
_FIRST = 1
_WORDS_PER_PLACE = 2


def stall_table_words(workers: int, limits: Limits) -> int:
    """Shared words of the whole table."""
    return _FIRST + _WORDS_PER_PLACE * workers * limits.blocking_clients_max


class StallTable:
    """One process's view; `worker` is None in a process that serves no clients."""

    def __init__(self, words: memoryview, places_per_worker: int, worker: int | None) -> None:
        self._words = words
        self._places_per_worker = places_per_worker
        self._bit = 0 if worker is None else 1 << worker
        own = () if worker is None else self._places_of(worker)
        self._free = list(reversed(own))

    def _places_of(self, worker: int) -> range:
        size = _WORDS_PER_PLACE * self._places_per_worker
        first = _FIRST + worker * size
        return range(first, first + size, _WORDS_PER_PLACE)

    # -- this worker's own places --------------------------------------------------------------
    @property
    def free(self) -> int:
        """How many places are left."""
        return len(self._free)

    def take_place(self) -> int | None:
        """A place for one more client of this worker, or None."""
        return self._free.pop() if self._free else None

    def claim_place(self, place: int) -> None:
        """Take a place that a predecessor of this worker gave a client."""
        self._free.remove(place)

    def give_back(self, place: int) -> None:
        """Free a place, which is cleared already."""
        self._free.append(place)

    # -- under the lock ------------------------------------------------------------------------
    def stall(self, place: int, client: int) -> None:
        """The client with this place has no room from now on."""
        self._words[place] = client
        self._words[_STALLED] += 1

    def clear(self, place: int) -> int:
        """The client has room again, or is gone; returns the workers to wake."""
        if self._words[place]:
            self._words[place] = 0
            self._words[_STALLED] -= 1
        return self.release(place)

    def release(self, place: int) -> int:
        """Empty the waiters of this place; returns the workers to wake."""
        waiters: int = self._words[place + 1]
        self._words[place + 1] = 0
        return waiters

    def count(self) -> int:
        """How many clients are stalled."""
        return int(self._words[_STALLED])

    def any_stalled(self) -> bool:
        return bool(self._words[_STALLED])

    def is_stalled(self, place: int, client: int) -> bool:
        """Whether this client has this place, and no room."""
        return bool(self._words[place] == client)

    def wait(self, place: int) -> None:
        """Have this worker woken when the client in the place has room again."""
        self._words[place + 1] |= self._bit

    def reap(self, worker: int) -> None:
        """Clear the places of a dead worker, for whose clients nobody waits any more."""
        for place in self._places_of(worker):
            self._words[place] = self._words[place + 1] = 0
        places = self._words[_FIRST::_WORDS_PER_PLACE]
        self._words[_STALLED] = len(places) - places.tolist().count(0)
