"""A subscription takes effect, and ends, at one instant for the whole bus.

When a client has received a reply to a packet that it sent after its `SUB`, every matching message
that any client publishes from then on reaches it (PROTOCOL, "Promises", 2).
"""

import threading
from pathlib import Path

from tests.support.bus import running_bus
from tests.support.processes import clients_on_each
from tests.support.raw_client import RawClient
from tests.support.threads import meanwhile

WORKERS = 3
ROUNDS = 18
AHEAD_MAX = 300


class Counting:
    """A client that publishes 1, 2, 3, ... as fast as it can; `begun` is the one it sends now.

    It does not run further ahead of who reads than a backlog can hold.
    """

    def __init__(self, client: RawClient, key: bytes) -> None:
        self.client = client
        self.key = key
        self.begun = 0
        self._last = 0
        self._change = threading.Condition()

    def allow(self, more: int) -> None:
        """Go on, to this many beyond the one of now."""
        with self._change:
            self._last = self.begun + more
            self._change.notify()

    def publish(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with self._change:
                self._change.wait_for(lambda: stop.is_set() or self.begun < self._last, 0.05)
            while self.begun < self._last:
                self.begun += 1
                self.client.pub(self.key, b"%d" % self.begun)


def check_one_subscription(client: RawClient, counting: list[Counting]) -> None:
    """Subscribe, pass the barrier, and receive from everybody until past that instant."""
    for publisher in counting:
        publisher.allow(AHEAD_MAX)
    client.sub(b"count/")
    received = client.sync()
    begun = [publisher.begun for publisher in counting]
    for publisher in counting:
        publisher.allow(AHEAD_MAX)
    numbers: list[list[int]] = [[] for _ in counting]

    def take(packet: bytes) -> None:
        at, _, number = packet.removeprefix(b"MSG count/").partition(b"\0")
        numbers[int(at)].append(int(number))

    for packet in received:
        take(packet)
    while any(not some or some[-1] <= at for some, at in zip(numbers, begun, strict=True)):
        take(client.receive())
    client.unsub(b"count/")
    for packet in client.sync():
        take(packet)
    ended = [publisher.begun for publisher in counting]

    for some, at, end in zip(numbers, begun, ended, strict=True):
        assert some[0] <= at + 1, "what was published after the barrier did not arrive"
        assert some == list(range(some[0], some[-1] + 1)), "a gap, or out of order"
        assert some[-1] <= end
    client.receive_nothing()


def test_a_barrier_makes_a_subscription_known_to_all_publishers(tmp_path: Path) -> None:
    """Publishers on every worker never pause, and others listen, too."""
    with running_bus(tmp_path, workers=WORKERS) as bus, clients_on_each(bus, WORKERS, 3) as places:
        counting = [Counting(clients[0], b"count/%d" % at) for at, clients in enumerate(places)]
        for clients in places:  # these never read
            clients[2].sub(b"count/")
            clients[2].whoami()
        with meanwhile(*(publisher.publish for publisher in counting)):
            for number in range(ROUNDS):
                check_one_subscription(places[number % WORKERS][1], counting)
