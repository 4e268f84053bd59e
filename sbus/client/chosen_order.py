"""The order in which the bus sends the backlog of a connection.

Answers, requests, jobs, names and last values rely on the one order of the bus, and many of them
share a key. So their receivers choose `order/queue`, because the bus may have another default. They
refuse to start if the program has chosen another order, and while one of them exists, the program
cannot choose another.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sbus.errors import ConfigurationError
from sbus.protocol import controls
from sbus.protocol.controls import BacklogOrder
from sbus.protocol.packets import CONTROL_WORD, NUL, encode_control

_QUEUE = b"order/" + BacklogOrder.QUEUE.value.encode()


class ChosenOrder:
    """That of one connection."""

    def __init__(self, *, is_fixed: bool) -> None:
        """In the dot dialect it is fixed, and nobody knows which one it is."""
        self._chosen = _QUEUE if is_fixed else b""
        """The control key of the last choice; empty for that of the bus."""
        self._needed = 0

    @contextmanager
    def needed(self) -> Iterator[None]:
        """Something within the block needs the bus's one order. Raises ConfigurationError."""
        if self._chosen not in (b"", _QUEUE):
            raise ConfigurationError(
                f"this connection has chosen {self._chosen.decode()}; requests, worker groups, "
                f"last values and watches of members need {_QUEUE.decode()}"
            )
        self._needed += 1
        try:
            yield
        finally:
            self._needed -= 1

    def missing(self) -> bytes | None:
        """What is to be sent where it is `needed`."""
        return None if self._chosen else encode_control(_QUEUE)

    def check(self, packet: bytes) -> None:
        """Raise ConfigurationError if this control message chooses what must not be chosen now."""
        order = _order_of(packet)
        if self._needed and order not in (b"", _QUEUE):
            raise ConfigurationError(
                f"{order.decode()} is not for a connection with an open request, worker group, "
                "watch of members or last values: use another connection"
            )

    def note_sent(self, packet: bytes) -> None:
        """This control message was sent."""
        self._chosen = _order_of(packet) or self._chosen


def _order_of(packet: bytes) -> bytes:
    """The control key, if it chooses an order."""
    key = packet.removeprefix(CONTROL_WORD).partition(NUL)[0]
    return key if isinstance(controls.flood_choice(key), BacklogOrder) else b""
