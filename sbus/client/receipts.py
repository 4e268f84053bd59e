"""The receipts that a connection waits for: each says how many clients received one message.

Every request for a receipt has a token of its own, because receipts come in the order in which they
are complete.
"""

from itertools import count

from sbus.errors import BusError, PacketRefused
from sbus.protocol.codes import PACKETS_LOST
from sbus.protocol.packets import NUL, PUBLISH_WORD, encode_control
from sbus.protocol.receipts import PUBLISH, Receipt, parse_receipt

_UNKNOWN = "a worker of the bus died: nobody knows whether this message was published"


class OpenReceipt:
    """One that somebody waits for."""

    def __init__(self, token: bytes, packet: bytes) -> None:
        self.token = token
        self.packet = packet
        """What is sent."""
        self.number = 0
        """Of those that were sent, from 1 on."""
        self.result: Receipt | BusError | None = None

    def receipt(self) -> Receipt:
        """What has come of the message; raises what went wrong."""
        assert self.result is not None
        if isinstance(self.result, BusError):
            raise self.result
        return self.result


class Receipts:
    """Those of one connection."""

    def __init__(self) -> None:
        self._tokens = count(1)
        self._open: dict[bytes, OpenReceipt] = {}
        self._sent = 0

    def open(self, message: bytes) -> OpenReceipt:
        """Ask for the receipt for the message in this packet; `close` follows."""
        token = b"%d" % next(self._tokens)
        payload = token + NUL + message.removeprefix(PUBLISH_WORD)
        opened = self._open[token] = OpenReceipt(token, encode_control(PUBLISH, payload))
        return opened

    def note_sent(self, opened: OpenReceipt) -> None:
        """The packet for this one was sent."""
        self._sent += 1
        opened.number = self._sent

    def close(self, opened: OpenReceipt) -> None:
        """Nobody waits for this one any more."""
        del self._open[opened.token]

    def feed(self, payload: bytes) -> None:
        """Take in a receipt. One that came twice, or late, is ignored. Raises ProtocolViolation."""
        token, result = parse_receipt(payload)
        opened = self._open.get(token)
        if opened is not None and opened.result is None:
            opened.result = result if isinstance(result, Receipt) else PacketRefused(*result)

    @property
    def has_open(self) -> bool:
        """Whether a receipt that was asked for has not come yet."""
        return any(opened.number and opened.result is None for opened in self._open.values())

    @property
    def newest(self) -> int:
        """The number of the last one that was asked for."""
        return self._sent

    def settle(self, number: int) -> None:
        """A worker died, and the bus has processed or lost what asked for the receipts up to this
        one: those that have not come may never do so."""
        for opened in self._open.values():
            if 0 < opened.number <= number:
                opened.result = opened.result or PacketRefused(PACKETS_LOST, _UNKNOWN)

    def fail_all(self, error: BusError) -> None:
        """No receipt will come for any message so far."""
        for opened in self._open.values():
            opened.result = opened.result or error
