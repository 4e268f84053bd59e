"""What a subscriber has received of other buses, checked against what was sent there.

A publisher of a bus sends `all/ORIGIN` with the payloads 1, 2, …, alone in the channel `all`, so
these are the numbers that its bridge gives them.
"""

import json
from collections import defaultdict

import sbus
from sbus.client.blocking import Connection

PATTERNS = ("all/*", "bridge/lost/all")


class Account:
    """That of one subscriber."""

    def __init__(self, address: str) -> None:
        self.bus: Connection[sbus.Message] = sbus.blocking.connect(address)
        for pattern in PATTERNS:
            self.bus.subscribe(pattern)
        self.bus.sync()
        self.next: dict[str, int] = defaultdict(lambda: 1)
        self.received: dict[str, int] = defaultdict(int)
        self.admitted: dict[str, int] = defaultdict(int)

    def read_until(self, sent: dict[str, int], seconds: float = 30.0) -> None:
        """Read until everything that was sent has come, or is admitted to be lost."""
        while any(self.next[origin] <= count for origin, count in sent.items()):
            for message in self.bus.receive_many(timeout_seconds=seconds):
                self._take(message)
        for origin, count in sent.items():
            assert self.received[origin] + self.admitted[origin] == count

    def read_nothing(self) -> None:
        """Nothing more has come than was expected."""
        self.bus.sync()
        try:
            found = self.bus.receive_many(timeout_seconds=0)
        except TimeoutError:
            return
        raise AssertionError(f"more has come: {found[:5]}")

    def _take(self, message: sbus.Message) -> None:
        key = message.key.decode()
        if key == "bridge/lost/all":
            gap = json.loads(message.payload)
            origin = gap["origin"]
            assert gap["first"] == self.next[origin]
            self.admitted[origin] += gap["count"]
            self.next[origin] += gap["count"]
            return
        origin = key.removeprefix("all/")
        assert int(message.payload) == self.next[origin], f"of {origin}"
        self.next[origin] += 1
        self.received[origin] += 1
