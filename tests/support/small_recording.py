"""Recordings of a few messages, for tests that know each row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from sbus.pipeline.store.row_batches import Losses, RecorderIdentity, message_batch
from sbus.pipeline.store.sealing import Sealer
from sbus.pipeline.store.writer import RecordingWriter
from sbus.protocol.text import to_text

BUS = "/run/sbus.socket"
FIRST_US = 1_790_000_000_000_000
"""The time of the first row of every recorder; each further row is a millisecond later."""
STEP_US = 1_000


class SmallRecorder:
    """The recorder of a host, in a `with` block."""

    def __init__(self, directory: Path, host: str = "alder") -> None:
        self._directory = directory
        self.identity = RecorderIdentity.of(host, BUS)
        self.name = self.identity.recorder
        self._writer = RecordingWriter(directory, self.identity)
        self._table = self._writer.tables["messages"]

    @property
    def qualified_name(self) -> str:
        return self._writer.recorder.qualified_name

    @property
    def end(self) -> int:
        return self._table.next_offset

    def record(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """One batch of messages, key and payload."""
        self._append(messages, {})

    def record_gap(self, lost: int | None) -> None:
        self._append([(b"", b"")], {0: lost})

    def roll(self) -> None:
        """End the segment file."""
        self._table.roll()

    def seal(self, grace_seconds: float = 0.0) -> None:
        """Seal what is complete, and delete its segment files after so long."""
        sealer = Sealer(self._directory, self._writer.recorder)
        sealer.seal()
        sealer.delete_sealed(grace_seconds)

    def _append(self, rows: Sequence[tuple[bytes, bytes]], losses: Losses) -> None:
        first = self._table.next_offset
        columns = {
            "key": pa.array([to_text(key) for key, _ in rows], pa.string()),
            "value": pa.array([value for _, value in rows], pa.binary()),
        }
        stamps_us = FIRST_US + STEP_US * np.arange(first, first + len(rows))
        self._table.append(message_batch(first, stamps_us, columns, losses))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def numbered(count: int, first: int = 0) -> list[tuple[bytes, bytes]]:
    """Messages with their number as payload, under seven keys."""
    return [(b"n/%d" % (number % 7), b"%d" % number) for number in range(first, first + count)]
