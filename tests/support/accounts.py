"""What a subscriber has received of other buses, checked against what was sent there.

A publisher of a bus sends `all/ORIGIN` with the payloads 1, 2, …, alone in the channel `all`, so
these are the numbers that its bridge gives them.
"""

import json
import time
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
        self._expected: dict[str, int] | None = None
        self._give_up_at: float | None = None

    def read_until(self, sent: dict[str, int], seconds: float = 30.0) -> None:
        """Read until everything that was sent has come, or is admitted to be lost."""
        while not self._has_all(sent):
            for message in self.bus.receive_many(timeout_seconds=seconds):
                self._take(message)
        self.check(sent)

    def run(self) -> None:
        """Read until everything has come that is `expect`ed, which another thread says."""
        while self._expected is None or not self._has_all(self._expected):
            try:
                messages = self.bus.receive_many(timeout_seconds=0.5)
            except TimeoutError:
                assert self._give_up_at is None or time.monotonic() < self._give_up_at
                continue
            for message in messages:
                self._take(message)

    def expect(self, sent: dict[str, int], seconds: float = 60.0) -> None:
        """This is all that was sent."""
        self._give_up_at = time.monotonic() + seconds
        self._expected = sent

    def check(self, sent: dict[str, int]) -> None:
        for origin, count in sent.items():
            assert self.received[origin] + self.admitted[origin] == count, origin

    def _has_all(self, sent: dict[str, int]) -> bool:
        return all(self.next[origin] > count for origin, count in sent.items())

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
