"""A model of a bus that delivers at once, for comparison with a real one.

One process acts for all clients, one step after the other, so there is one true order of all their
packets. The model keeps, for every client, the packets that a perfect bus would send it, each with
the client's choice at that moment for messages that find no room, and compares them with the
packets that arrived. A notice of lost messages accounts for the number in it, in order `queue` at
its place.

    due = received + lost      for a client that read everything, and each lost one might be lost
"""

from collections import Counter
from enum import Enum

from sbus.protocol.keys import SLASH
from tests.support.flood import LOST, may_be_sent
from tests.unit.routing.specification import matches

REFUSED = b"CMSG !/error\0reserved "
TOO_SLOW = b"CMSG !/error\0too-slow "


class Fate(Enum):
    """What becomes of a message for which there is no room."""

    LOST = "lost"
    WAITS = "waits"
    IS_THE_LAST = "ends the connection"


def cost(packet: bytes) -> int:
    """More than what a packet takes of a socket's room, whatever the kernel adds to it."""
    return 1_000 + 2 * len(packet)


class ModelClient:
    """One client: what it is subscribed to, what it chose, and what is on its way to it."""

    def __init__(self) -> None:
        self.patterns: Counter[bytes] = Counter()
        self.echo = True
        self.notices = False
        self.soft, self.hard = "queue", "discard"
        self._has_blocked = False
        """Whether it blocked at some time since it last read everything."""
        self._orders = ["queue"]
        """Those in which what is due may have been sent; the last one holds."""
        self.due: list[bytes] = []
        """What it was sent since it last read everything; `REFUSED` stands for its whole notice."""
        self._fates: dict[bytes, Fate] = {}
        self._read: list[bytes] = []
        """What it read of that already."""

    @property
    def unread_cost(self) -> int:
        """At most this much room is taken."""
        return sum(map(cost, self.due))

    @property
    def fate(self) -> Fate:
        choice = self.hard if self.soft == "queue" else self.soft
        return {"discard": Fate.LOST, "block": Fate.WAITS, "error": Fate.IS_THE_LAST}[choice]

    @property
    def may_hold(self) -> bool:
        """Whether publishers may wait for it. It may be one of them itself; the bus then has not
        read what it chose since."""
        return self._has_blocked or self.fate is Fate.WAITS

    @property
    def may_have_been_ended(self) -> bool:
        return Fate.IS_THE_LAST in self._fates.values()

    def wants(self, key: bytes) -> bool:
        return any(matches(pattern, key, SLASH) for pattern in self.patterns)

    def unsubscribe(self, pattern: bytes) -> None:
        """Take one occurrence back, if there is one."""
        self.patterns = self.patterns - Counter([pattern])

    def choose(self, control: str) -> None:
        """What a control key of flood control chooses; nothing for any other."""
        self._has_blocked = self.may_hold
        what, _, choice = control.rpartition("/")
        if what == "blocking/soft":
            self.soft = choice
        elif what == "blocking/hard":
            self.hard = choice
        else:
            self._orders.append(choice)

    # -- what is due -----------------------------------------------------------------------------
    def send(self, packet: bytes) -> None:
        self.due.append(packet)
        self._fates[packet] = self.fate

    def refuse(self) -> None:
        if self.notices:
            self.due.append(REFUSED)

    # -- what came -------------------------------------------------------------------------------
    def read_some(self, received: list[bytes]) -> None:
        """Take in something of what was due; it is compared with the rest."""
        self._read += received

    def read_all(self, received: list[bytes]) -> int:
        """Compare everything that was due with everything that came; returns what was lost."""
        missing = self._compare([*self._read, *received])
        assert all(self._fates[packet] is Fate.LOST for packet in missing), "none of them might be"
        self.due, self._fates, self._read = [], {}, []
        self._has_blocked = False
        self._orders = self._orders[-1:]
        return len(missing)

    def end(self, received: list[bytes]) -> None:
        """Compare what came, up to the end of the connection, with what was due up to some point
        at which there was no room."""
        received = [*self._read, *received]
        if self.notices:
            assert received, "it was not told why"
            assert received.pop().startswith(TOO_SLOW)
        missing = self._compare(received, ended=True)
        assert Fate.IS_THE_LAST in (self._fates.get(packet) for packet in missing), "without need"

    def _compare(self, received: list[bytes], *, ended: bool = False) -> list[bytes]:
        """The messages that did not come. Every message is distinct."""
        if set(self._orders) != {"queue"}:
            return self._compare_sets(received, ended)
        missing: list[bytes] = []
        at = 0
        for packet in received:
            if packet.startswith(LOST):
                gap = self._lost_by(packet)
            elif self.notices:
                gap = 0
            else:
                assert packet in self.due[at:], f"not due here: {packet[:60]!r}"
                gap = self.due.index(packet, at) - at
            missing += self.due[at : at + gap]
            at += gap
            assert at <= len(self.due), "more were lost than there were"
            if not packet.startswith(LOST):
                assert at < len(self.due), f"nothing more was due, but came: {packet[:60]!r}"
                came, expected = short(packet), self.due[at]
                assert came == expected, f"{packet[:60]!r} instead of {expected[:60]!r}"
                at += 1
        rest = self.due[at:]
        assert ended or not rest or not self.notices, f"{len(rest)} never came: {rest[0][:60]!r}"
        missing += rest
        assert REFUSED not in missing or ended, "a notice was lost"
        return missing

    def _compare_sets(self, received: list[bytes], ended: bool) -> list[bytes]:
        """Where the place of a gap is not told; and the order is that of the backlog."""
        told = sum(self._lost_by(packet) for packet in received if packet.startswith(LOST))
        came = [short(packet) for packet in received if not packet.startswith(LOST)]
        missing = Counter(self.due) - Counter(came)
        assert not Counter(came) - Counter(self.due), "what was not due came"
        assert told <= missing.total()
        if not ended:
            assert told == missing.total() or not self.notices
            assert REFUSED not in missing, "a notice was lost"
            if len(set(self._orders)) == 1:
                kept = [packet for packet in self.due if packet not in missing]
                for due_part, came_part in zip(sections(kept), sections(came), strict=True):
                    assert may_be_sent(self._orders[0], due_part, came_part), "not in this order"
        return list(missing)

    def _lost_by(self, notice: bytes) -> int:
        assert self.notices, "a notice that was not asked for"
        count = int(notice.removeprefix(LOST))
        assert count > 0
        return count


def short(packet: bytes) -> bytes:
    return REFUSED if packet.startswith(REFUSED) else packet


def sections(packets: list[bytes]) -> list[list[bytes]]:
    """What comes before, between and after replies, which no order moves."""
    parts: list[list[bytes]] = [[]]
    for packet in packets:
        if packet == REFUSED:
            parts.append([])
        else:
            parts[-1].append(packet)
    return parts


class Model:
    """All clients, by a name; the order of the calls is the order of the bus."""

    def __init__(self) -> None:
        self.clients: dict[int, ModelClient] = {}

    def publish(self, publisher: int, key: bytes, packet: bytes) -> None:
        for name, client in self.clients.items():
            if client.wants(key) and (name != publisher or client.echo):
                client.send(packet)
