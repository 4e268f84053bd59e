"""Recordings written by hand: rows with given times, no bus and no process."""

import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from sbus.pipeline import housekeeping, manifest
from sbus.pipeline.manifest import FileEntry
from sbus.pipeline.recording import Recording, TableSnapshot, read
from sbus.pipeline.rows import of_packets
from sbus.pipeline.store import Origin, Store

ORIGIN = Origin.of("Host.example", "/run/sbus.socket")
RECORDER = ORIGIN.recorder
DAY_US = 86_400_000_000
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp() * 1_000_000)
TODAY = date(2026, 3, 1)


def append(store: Store, stamps_us: Sequence[int]) -> None:
    """Commit a batch of messages that came at these times; the payload is the offset."""
    log = store.tables["messages"]
    first = log.next_offset
    packets = [b"MSG k/%d\0%d" % (at % 3, at) for at in range(first, first + len(stamps_us))]
    log.append(*of_packets(store.origin, first, packets, [us * 1000 for us in stamps_us], {}))


def write_segments(directory: Path, *segments: Sequence[int]) -> None:
    """A complete segment for each row of times."""
    with Store(directory, ORIGIN) as store:
        for stamps_us in segments:
            append(store, stamps_us)
            store.tables["messages"].roll()


def messages(directory: Path) -> TableSnapshot:
    return Recording(directory).snapshot(RECORDER).table("messages")


def files(directory: Path) -> list[FileEntry]:
    """What the manifest lists of messages."""
    return manifest.load(directory, RECORDER).tables["messages"].files


def seal(directory: Path) -> None:
    housekeeping.seal(directory, RECORDER, threading.Event())


def offsets(table: TableSnapshot, first: int = 0, end: int = 2**62) -> list[int]:
    """The offsets of the rows between two, each as often as it is there; every row is what was
    written there."""
    found: list[int] = []
    for piece in table.plan(first, end):
        in_piece: list[int] = []
        for batch in read(piece):
            in_piece += batch["offset"].to_pylist()
            assert batch["value"].to_pylist() == [b"%d" % at for at in batch["offset"].to_pylist()]
        assert in_piece == sorted(in_piece), "rows of a file come in their order"
        assert len(in_piece) == piece.rows
        found += in_piece
    return sorted(found)
