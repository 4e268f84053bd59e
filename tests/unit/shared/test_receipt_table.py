"""The table of receipts, as the workers see it that a message is for."""

from sbus.protocol.receipts import Counts
from sbus.shared.receipt_table import ReceiptTable, receipt_words

PUBLISHERS, OTHER = 0, 1


class Interrupted(ReceiptTable):
    """Whenever it was asked about the second message, the other worker delivers all of them."""

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
