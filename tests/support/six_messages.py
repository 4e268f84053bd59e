"""A client that does not read, and six messages for it: enough to check every policy and order.

Four of them fit into its backlog, and their different sizes show the order.
"""

from collections.abc import Sequence

from tests.support.flood import (
    LOST,
    filling,
    give_turns,
    limit_options,
    message,
    wait_until_received,
)
from tests.support.raw_client import RawClient

BACKLOG_MESSAGES = 4
UNLIMITED_SECONDS = 60
"""Nobody can hold others back for longer than this in a minute, so it is never spent."""
OPTIONS = limit_options(
    backlog_messages_max=BACKLOG_MESSAGES, user_held_seconds_max=UNLIMITED_SECONDS
)

A, BBB, D, CC = message(b"a", 100), message(b"b", 3_000), message(b"d", 50), message(b"c", 2_000)
TOO_MANY = (message(b"e", 70), message(b"f", 5_000))
SIX = (A, BBB, D, CC, *TOO_MANY)


def in_order(order: str, kept: int, given: Sequence[bytes] = SIX) -> list[bytes]:
    """What arrives if the first `kept` were kept until the client reads, and the others dropped."""
    packets = list(given[:kept])
    gap = [LOST + b"%d" % (len(given) - kept)] * (kept < len(given))
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

    def begin(self, *choices: str) -> None:
        """Choose, subscribe, and fill the socket."""
        for choice in ("!/notices/on", *choices):
            self.slow.control(choice.encode())
        self.slow.sub(b"k")
        self.slow.whoami()
        self.publish(*self.filling)

    def control(self, *keys: str) -> None:
        """Send control messages of the slow client that get no reply; some have unknown keys."""
        for key in keys:
            self.slow.send(b"CMSG " + key.encode())
        wait_until_received(self.slow)
        self.neighbour.whoami()

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
        return self.behind_the_filling(self.slow.sync())

    def behind_the_filling(self, packets: list[bytes]) -> list[bytes]:
        assert packets[: len(self.filling)] == self.filling
        return packets[len(self.filling) :]
