"""A bus in which everything happens at once, for comparison with a real one.

One process does everything, one step after the other, so there is one true order of all that
clients say. The model keeps, for every client, the packets that a perfect bus would send it, and
compares them with what came: a notice of lost messages stands for as many of them as it says, at
its place. Knows no sockets.
"""

from collections import Counter

from sbus.protocol.keys import SLASH
from tests.unit.routing.specification import matches

LOST = b"CMSG !/lost\0"
REFUSED = b"CMSG !/error\0reserved "


class ModelClient:
    """One client: what it is subscribed to, what it set, and what is on its way to it."""

    def __init__(self) -> None:
        self.patterns: Counter[bytes] = Counter()
        self.echo = True
        self.notices = False
        self.due: list[bytes] = []
        """What it was sent since it last read everything; `REFUSED` stands for its whole notice."""

    @property
    def unread_bytes(self) -> int:
        return sum(map(len, self.due))

    def wants(self, key: bytes) -> bool:
        return any(matches(pattern, key, SLASH) for pattern in self.patterns)

    def unsubscribe(self, pattern: bytes) -> None:
        """Take one occurrence back, if there is one."""
        self.patterns = self.patterns - Counter([pattern])

    def refuse(self) -> None:
        if self.notices:
            self.due.append(REFUSED)

    def read(self, received: list[bytes]) -> int:
        """Compare everything that was due with everything that came; returns what was lost.

        Every message is distinct. Without notices messages may be missing anywhere.
        """
        due, self.due = self.due, []
        at = lost = 0
        for packet in received:
            missing = 0
            if packet.startswith(LOST):
                assert self.notices, "a notice that was not asked for"
                missing = int(packet.removeprefix(LOST))
                assert missing > 0
            elif self.notices:
                assert at < len(due), f"nothing more was due, but came: {packet[:60]!r}"
            else:
                assert packet in due[at:], f"not due here: {packet[:60]!r}"
                missing = due.index(packet, at) - at
            gap = due[at : at + missing]
            assert len(gap) == missing, "more were lost than there were"
            assert REFUSED not in gap, "a notice was lost"
            at += missing
            lost += missing
            if not packet.startswith(LOST):
                expected = due[at]
                came = packet[: len(REFUSED)] if expected == REFUSED else packet
                assert came == expected, f"{packet[:60]!r} instead of {expected[:60]!r}"
                at += 1
        rest = due[at:]
        assert not (rest and self.notices), f"{len(rest)} never came, first {rest[0][:60]!r}"
        return lost + len(rest)


class Model:
    """All clients, by a name; the order of the calls is the order of the bus."""

    def __init__(self) -> None:
        self.clients: dict[int, ModelClient] = {}

    def publish(self, publisher: int, key: bytes, packet: bytes) -> None:
        for name, client in self.clients.items():
            if client.wants(key) and (name != publisher or client.echo):
                client.due.append(packet)
