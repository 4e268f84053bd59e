"""The receipt table, as the workers of a message's publisher and of its recipients see it."""

from typing import Any

import pytest

from sbus.protocol.receipts import Counts
from sbus.shared.client_slots import ClientSlots, client_slots_words
from sbus.shared.receipt_table import ReceiptTable, receipt_words

PUBLISHERS, OTHER = 0, 1


class Interrupted(ReceiptTable):
    """After each look at the second message, the other worker delivers all messages."""

    def __init__(self, words: memoryview) -> None:
        super().__init__(words, workers=2, worker=PUBLISHERS)
        self._other = ReceiptTable(words, workers=2, worker=OTHER)

    def is_complete(self, entry: int) -> bool:
        answer = super().is_complete(entry)
        if self.token(entry) == b"1":
            for opened in self.open:
                self._other.note_done(self.reference(opened), Counts(1, 0, 0))
        return answer


def test_complete_ones_are_in_order_although_workers_go_on_while_they_are_looked_at() -> None:
    table = Interrupted(memoryview(bytearray(8 * receipt_words(2))).cast("Q"))
    for number in range(3):
        entry = table.take(client=7, account_place=1, mark=0, token=b"%d" % number)
        assert entry is not None
        table.place(entry, 1 << OTHER)
        table.note_done(table.reference(entry), Counts(0, 0, 0))
    tokens = []
    for _ in range(2):
        for receipt in table.complete():
            tokens.append(table.token(receipt.entry))
            table.note_told(receipt.entry)
    assert tokens == [b"0", b"1", b"2"]


class WatchedWords:
    """Shared words; the publisher's worker looks for receipts that are complete at each store."""

    def __init__(self, words: memoryview, looks: ReceiptTable) -> None:
        self._words = words
        self._table = looks
        self.told: list[bytes] = []

    def __getitem__(self, at: Any) -> Any:
        return self._words[at]

    def __setitem__(self, at: int, value: int) -> None:
        self._words[at] = value
        for receipt in self._table.complete():
            self.told.append(self._table.token(receipt.entry))
            self._table.note_told(receipt.entry)


@pytest.mark.parametrize("worker", [PUBLISHERS, OTHER])
def test_a_successor_keeps_receipts_in_the_order_of_their_messages(worker: int) -> None:
    """A successor of the publisher's worker, or of a recipient's that had delivered nothing."""
    words = memoryview(bytearray(8 * receipt_words(2))).cast("Q")
    slots = ClientSlots(memoryview(bytearray(8 * client_slots_words(1))).cast("Q"))
    tables = [ReceiptTable(words, workers=2, worker=number) for number in (PUBLISHERS, OTHER)]

    def publish(token: bytes) -> int:
        entry = tables[PUBLISHERS].take(7, 1, slots[0].begin_step(), token)
        assert entry is not None
        tables[PUBLISHERS].place(entry, 1 << OTHER)
        slots[0].forget_pending()
        return entry

    for entry in [publish(b"earlier") for _ in range(3)]:
        tables[PUBLISHERS].give_back(entry)
    for entry in [publish(b"%d" % number) for number in range(3)]:
        tables[1 - worker].note_done(tables[PUBLISHERS].reference(entry), Counts(1, 0, 0))
    watched: Any = WatchedWords(words, tables[PUBLISHERS])
    tables[worker] = ReceiptTable(watched, workers=2, worker=worker)
    tables[worker].succeed(0, slots, {7: 1} if worker == PUBLISHERS else {})
    told = watched.told
    if worker == PUBLISHERS:
        told = [tables[PUBLISHERS].token(it.entry) for it in tables[PUBLISHERS].complete()]
    assert told == [b"0", b"1", b"2"]
