"""A client that does not read, and six messages for it: enough to check every policy and order.

Four of them fit into its backlog, and their different sizes show the order.
"""

from tests.support.flood import LOST, filling, give_turns, message
from tests.support.raw_client import RawClient

BACKLOG_MESSAGES = 4
A, BBB, D, CC = message(b"a", 100), message(b"b", 3_000), message(b"d", 50), message(b"c", 2_000)
TOO_MANY = (message(b"e", 70), message(b"f", 5_000))
SIX = (A, BBB, D, CC, *TOO_MANY)


def in_order(order: str, kept: int) -> list[bytes]:
    """What arrives if the first `kept` were kept until the client reads, and the others dropped."""
    packets = list(SIX[:kept])
    gap = [LOST + b"%d" % (len(SIX) - kept)] * (kept < len(SIX))
    if order == "queue":
        return packets + gap
    if order == "stack":
        return gap + packets[::-1]
    return gap + sorted(packets, key=len, reverse=True)


class Flood:
    """A subscriber that does not read, with notices on, a publisher, and others on the workers of
    both, of which the neighbour is the subscriber's."""

    def __init__(self, slow: RawClient, publisher: RawClient, *others: RawClient) -> None:
        self.slow = slow
        self.publisher = publisher
        self.neighbour = others[0]
        self.others = others[::-1]
        """The publisher's worker first: what it has accepted, the subscriber's then learns of."""
        self.filling = filling()

    def publish(self, *packets: bytes) -> None:
        for packet in packets:
            self.publisher.send(packet)
        self.publisher.whoami()
        # Once to have it all accepted; and between this answer and the next one the worker has
        # found that the socket takes none of it.
        self.neighbour.whoami()
        self.neighbour.whoami()

    def publish_one_by_one(self, *packets: bytes) -> None:
        """Publish, each message after the bus has done what it could with the one before it."""
        for packet in packets:
            self.publisher.send(packet)
            give_turns(self.others)

    def read(self) -> list[bytes]:
        """All that arrives behind what filled the socket."""
        packets = self.slow.sync()
        assert packets[: len(self.filling)] == self.filling
        return packets[len(self.filling) :]
