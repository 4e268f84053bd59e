"""Receipts: what becomes of a message, as all workers tell the publisher's one.

The publisher's worker takes an *entry* of its own for a message whose publisher wants a receipt.
Each worker that the message is for has a *cell* there, and writes it when it has delivered that:

    entry = client | serial number | mark | mask | token's length | token | cell of each worker
    cell  = 0, or done (1 bit) and how many clients have the message, wait for it, and have lost it

    mask  the workers that the message is for, with the publisher's; it is stored in the critical
          section that gives the message its place, the rest before
    mark  that of the request's step (`client_slots`): it tells a successor whether the message has
          its place; 0 for a receipt that an upgrade has brought

The log block names the entry and its serial number, so what is walked late writes to no other
message's entry. An entry is given back when all of its cells are done; only their own workers write
them, and not twice. A successor writes UNKNOWN to the cells of its predecessor that are not done,
before it walks, and goes on with its predecessor's entries.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from sbus.protocol.receipts import TOKEN_BYTES_MAX, Counts
from sbus.shared.client_slots import ClientSlots

ENTRIES: Final = 256
"""Of each worker. An entry is taken until all workers concerned have walked to the message, which
is about a millisecond. A user takes at most as many as it leaves to others."""
OPEN_OF_CLIENT_MAX: Final = 64
"""Receipts that one client has not got yet: as many as it may send packets in a batch."""

_CLIENT, _SERIAL, _MARK, _MASK, _TOKEN_BYTES, _TOKEN = range(6)
_CELLS = _TOKEN + TOKEN_BYTES_MAX // 8
_COUNT_BITS = 21
_COUNT_MASK = (1 << _COUNT_BITS) - 1
_DONE = 1 << 63
UNKNOWN = (1 << 64) - 1
_NUMBER_BITS = 32


def receipt_words(workers: int) -> int:
    """Shared words of the entries of so many workers."""
    return workers * ENTRIES * (_CELLS + workers)


class OpenReceipt(NamedTuple):
    """An entry that is taken by a client of this worker."""

    entry: int
    client: int
    account_place: int


class ReceiptTable:
    """One worker's view of all entries."""

    def __init__(self, words: memoryview, workers: int, worker: int) -> None:
        self._words = words
        self._workers = workers
        self._worker = worker
        self._entry_words = _CELLS + workers
        self._free = list(range((worker + 1) * ENTRIES - 1, worker * ENTRIES - 1, -1))
        self.open: dict[int, OpenReceipt] = {}
        """Not told yet, by entry."""
        self._told: dict[int, list[OpenReceipt]] = {}
        """Told and maybe not sent yet, by client."""
        self._by_client: Counter[int] = Counter()
        self._by_user: Counter[int] = Counter()
        self.has_refused = False
        """Somebody waits until an entry is given back."""

    def has_any(self, client: int) -> bool:
        """Whether a client waits for receipts."""
        return client in self._by_client

    # -- by the publisher's worker -------------------------------------------------------------
    def take(self, client: int, account_place: int, mark: int, token: bytes) -> int | None:
        """Take an entry for this client's message; None when it has to wait."""
        is_over = self._by_client[client] >= OPEN_OF_CLIENT_MAX
        if is_over or self._by_user[account_place] >= len(self._free):
            self.has_refused = True
            return None
        entry = self._free.pop()
        at = entry * self._entry_words
        words = self._words
        words[at + _SERIAL] = words[at + _SERIAL] % ((1 << _NUMBER_BITS) - 1) + 1
        words[at + _MARK], words[at + _MASK] = mark, 0
        words[at + _TOKEN_BYTES] = len(token)
        words[at + _TOKEN : at + _CELLS].cast("B")[: len(token)] = token
        for worker in range(self._workers):
            words[at + _CELLS + worker] = 0
        words[at + _CLIENT] = client  # last: a successor looks at entries of clients only
        self._note_taken(OpenReceipt(entry, client, account_place))
        return entry

    def _note_taken(self, receipt: OpenReceipt) -> None:
        self.open[receipt.entry] = receipt
        self._by_client[receipt.client] += 1
        self._by_user[receipt.account_place] += 1

    def place(self, entry: int, mask: int) -> int:
        """The message gets its place, for these other workers. Under the lock. Returns the mark of
        its request."""
        at = entry * self._entry_words
        self._words[at + _MASK] = mask | 1 << self._worker
        return int(self._words[at + _MARK])

    def reference(self, entry: int) -> int:
        """How a log block names an entry; never 0."""
        return int(self._words[entry * self._entry_words + _SERIAL]) << _NUMBER_BITS | entry

    def token(self, entry: int) -> bytes:
        at = entry * self._entry_words
        size = self._words[at + _TOKEN_BYTES]
        return bytes(self._words[at + _TOKEN : at + _CELLS].cast("B")[:size])

    def is_local(self, entry: int) -> bool:
        """Whether a message that has its place is for no other worker."""
        return bool(self._words[entry * self._entry_words + _MASK] == 1 << self._worker)

    def is_complete(self, entry: int) -> bool:
        """Whether all workers concerned have done their part."""
        return all(self._cells(entry))

    def complete(self) -> list[OpenReceipt]:
        """What is complete and not told, the earliest message first. The latest is looked at first,
        because workers go on meanwhile: who has delivered it has delivered the earlier ones."""
        found = [it for it in reversed(self.open.values()) if self.is_complete(it.entry)]
        return found[::-1]

    def counts(self, entry: int) -> Counts | None:
        """What they say; None if that of one is unknown. It must be complete."""
        cells = self._cells(entry)
        if UNKNOWN in cells:
            return None
        shifts = (2 * _COUNT_BITS, _COUNT_BITS, 0)
        return Counts(*(sum(cell >> shift & _COUNT_MASK for cell in cells) for shift in shifts))

    def _cells(self, entry: int) -> list[int]:
        at = entry * self._entry_words
        mask = self._words[at + _MASK]
        cells = self._words[at + _CELLS : at + self._entry_words].tolist()
        return [cell for worker, cell in enumerate(cells) if mask >> worker & 1]

    def note_told(self, entry: int) -> None:
        """The client was sent its receipt, which may still wait for room in its socket."""
        receipt = self.open.pop(entry)
        self._told.setdefault(receipt.client, []).append(receipt)

    def keep_told(
        self, client: int, account_place: int, token: bytes, counts: Counts | None
    ) -> None:
        """Have a successor send this receipt again, which waits for a client of the bus before an
        upgrade; unless there is no entry for it."""
        entry = self.take(client, account_place, 0, token)
        if entry is not None:
            self.place(entry, 0)
            cell = entry * self._entry_words + _CELLS + self._worker
            self._words[cell] = UNKNOWN if counts is None else _packed(counts)
            self.note_told(entry)

    def forget_told(self, client: int) -> bool:
        """Nothing waits for a client: give back the entries of what it was told. Returns whether
        somebody waits for one."""
        for receipt in self._told.pop(client, ()):
            self._release(receipt)
        return self._take_refused()

    def give_back(self, entry: int) -> bool:
        """The entry is needed no more; returns whether somebody waits for one."""
        self._release(self.open.pop(entry))
        return self._take_refused()

    def _release(self, receipt: OpenReceipt) -> None:
        entry, client, account_place = receipt
        self._words[entry * self._entry_words + _CLIENT] = 0
        self._free.append(entry)
        for counter, who in ((self._by_client, client), (self._by_user, account_place)):
            counter[who] -= 1
            if not counter[who]:
                del counter[who]

    def _take_refused(self) -> bool:
        has_refused, self.has_refused = self.has_refused, False
        return has_refused

    # -- by every worker that the message is for -----------------------------------------------
    def note_done(self, reference: int, counts: Counts) -> int:
        """This worker has delivered the message of a log block; returns the workers to wake."""
        entry = reference & ((1 << _NUMBER_BITS) - 1)
        at = entry * self._entry_words
        if at >= len(self._words) or self._words[at + _SERIAL] != reference >> _NUMBER_BITS:
            return 0
        cell = at + _CELLS + self._worker
        if not self._words[at + _CLIENT] or self._words[cell]:
            return 0
        self._words[cell] = _packed(counts)
        return 1 << entry // ENTRIES

    # -- by a successor ------------------------------------------------------------------------
    def succeed(self, placed: int, slots: ClientSlots, accounts: Mapping[int, int]) -> int:
        """Go on where a predecessor died: what it was delivering is unknown, and what it had begun
        and not placed was not published; `placed` is the mark of its last request that has its
        place. The clients have these `accounts`; others have left. Returns the workers to wake."""
        woken = 0
        clients = self._words[_CLIENT :: self._entry_words].tolist()
        marks = self._words[_MARK :: self._entry_words].tolist()
        taken = [entry for entry, client in enumerate(clients) if client]
        taken.sort(key=marks.__getitem__)  # each client's in the order of its messages
        for entry in taken:
            cell = entry * self._entry_words + _CELLS + self._worker
            self._words[cell] = self._words[cell] or UNKNOWN
            woken |= 1 << entry // ENTRIES  # the predecessor may have died before it did that
        for entry in taken:
            if entry // ENTRIES != self._worker:
                continue
            client, mark = clients[entry], marks[entry]
            is_unplaced = mark and mark != placed and slots.with_mark(mark).has_place(mark)
            if client not in accounts or is_unplaced:
                self._words[entry * self._entry_words + _CLIENT] = 0
            else:
                self._free.remove(entry)
                self._note_taken(OpenReceipt(entry, client, accounts[client]))
        return woken


def _packed(counts: Counts) -> int:
    """What a worker writes when it is done."""
    sent, waiting, lost = counts
    return _DONE | (sent << _COUNT_BITS | waiting) << _COUNT_BITS | lost
