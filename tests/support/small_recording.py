"""Recordings of a few messages, as the recorder writes them: for tests that know each row."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from sbus.pipeline.schemas import GAP, MESSAGE, MESSAGES
from sbus.pipeline.store import Origin, Store
from sbus.protocol.text import to_text

BUS = "/run/sbus.socket"
FIRST_US = 1_790_000_000_000_000
"""When the first row of every recorder was written; each further one is a millisecond later."""
STEP_US = 1_000


class SmallRecorder:
    """The recorder of a host, in a `with` block."""

    def __init__(self, directory: Path, host: str = "alder") -> None:
        self.origin = Origin.of(host, BUS)
        self.name = self.origin.recorder
        self._store = Store(directory, self.origin)
        self._log = self._store.tables["messages"]

    @property
    def end(self) -> int:
        return self._log.next_offset

    def record(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """One batch of messages, key and payload."""
        self._append([(to_text(key), value, MESSAGE, None) for key, value in messages])

    def record_gap(self, lost: int | None) -> None:
        self._append([("", b"", GAP, lost)])

    def roll(self) -> None:
        """End the segment."""
        self._log.roll()

    def _append(self, rows: Sequence[tuple[str, bytes, str, int | None]]) -> None:
        count, first = len(rows), self._log.next_offset
        keys, values, kinds, lost = zip(*rows, strict=True)
        times = [FIRST_US + STEP_US * (first + number) for number in range(count)]
        known = {
            **{"key": keys, "value": values, "kind": kinds, "lost": lost, "timestamp": times},
            "recorder": [self.name] * count,
            "host": [self.origin.host] * count,
            "bus": [BUS] * count,
            "offset": range(first, first + count),
        }
        columns = [
            pa.array(known.get(field.name, [None] * count), field.type) for field in MESSAGES
        ]
        self._log.append(pa.record_batch(columns, schema=MESSAGES), times[0], times[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._store.close()


def numbered(count: int, first: int = 0) -> list[tuple[bytes, bytes]]:
    """Messages that tell their number, under seven keys."""
    return [(b"n/%d" % (number % 7), b"%d" % number) for number in range(first, first + count)]
