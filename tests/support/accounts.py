"""What a subscriber has received of other buses, checked against what was sent there.

A publisher of a bus sends `all/ORIGIN` with the payloads 1, 2, …, alone in the channel `all`, so
these are the numbers that its bridge gives them.
"""

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import sbus
from sbus.client.blocking import Connection

PATTERNS = ("all/*", "bridge/lost/all")
EMPTY: Mapping[str, int] = MappingProxyType({})


class Account:
    """That of one subscriber."""

    def __init__(self, address: str) -> None:
        self.bus: Connection[Any] = self._connect(address)
        for pattern in PATTERNS:
            self.bus.subscribe(pattern)
        self.bus.sync()
        self.next: dict[str, int] = defaultdict(lambda: 1)
        self.received: dict[str, int] = defaultdict(int)
        self.admitted: dict[str, int] = defaultdict(int)
        self._expected: dict[str, int] | None = None
        self._give_up_at: float | None = None

    def _connect(self, address: str) -> Connection[Any]:
        return sbus.blocking.connect(address)

    def read_until(
        self, sent: dict[str, int], seconds: float = 30.0, *, at_least: bool = False
    ) -> None:
        """Read until everything that was sent has come, or is admitted to be lost; perhaps more."""
        while not self._has_all(sent):
            for message in self.bus.receive_many(timeout_seconds=seconds):
                self._take(message)
        if not at_least:
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

    def expect(self, sent: dict[str, int]) -> None:
        """This is all that was sent."""
        self._give_up_at = time.monotonic() + 60.0
        self._expected = sent

    def check(self, sent: dict[str, int], unknown: Mapping[str, int] = EMPTY) -> None:
        """Everything was received or admitted; `unknown` are those that were perhaps not sent."""
        for origin, count in sent.items():
            assert self.received[origin] + self.admitted[origin] == count, origin

    def __str__(self) -> str:
        return f"received {dict(self.received)}, admitted {dict(self.admitted)}"

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


class LossyAccount(Account):
    """That of a subscriber whose bus is killed and goes on: what the bus has lost itself is
    admitted for all origins together."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.missing: dict[str, int] = defaultdict(int)
        self.lost_by_bus = 0
        self.unknown_gaps = 0

    def __str__(self) -> str:
        return (
            f"{super().__str__()}, missing {dict(self.missing)}, lost by the bus "
            f"{self.lost_by_bus}, unknown gaps {self.unknown_gaps}"
        )

    def _connect(self, address: str) -> Connection[Any]:
        return sbus.blocking.connect(address, losses="report")

    def _take(self, message: Any) -> None:
        if isinstance(message, sbus.Lost):
            self.lost_by_bus += message.count or 0
            self.unknown_gaps += message.count is None
            return
        if message.key == b"bridge/lost/all":
            gap = json.loads(message.payload)
            self.admitted[gap["origin"]] += gap["count"] or 0
            self.unknown_gaps += gap["count"] is None
            return
        origin, number = message.key.decode().removeprefix("all/"), int(message.payload)
        assert number >= self.next[origin], f"{number} of {origin} comes again"
        self.missing[origin] += number - self.next[origin]
        self.received[origin] += 1
        self.next[origin] = number + 1

    def check(self, sent: dict[str, int], unknown: Mapping[str, int] = EMPTY) -> None:
        missing = 0
        for origin, count in sent.items():
            assert self.received[origin] + self.missing[origin] == count, origin
            missing += max(0, self.missing[origin] - self.admitted[origin] - unknown[origin])
        assert missing <= self.lost_by_bus or self.unknown_gaps, str(self)
