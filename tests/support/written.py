"""Recordings of rows with given times, written without a bus and a recorder process."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from sbus.pipeline.recorder.message_rows import of_packets
from sbus.pipeline.store import recorder_file
from sbus.pipeline.store.reader import Recording, TableSnapshot, read
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.schemas import IDENTITY as IDENTITY_COLUMNS
from sbus.pipeline.store.sealed_table import SealedTable
from sbus.pipeline.store.sealing import Sealer
from sbus.pipeline.store.stored_file import StoredFile
from sbus.pipeline.store.writer import RecordingWriter

IDENTITY = RecorderIdentity.of("Host.example", "/run/sbus.socket")
RECORDER = IDENTITY.recorder
DAY_US = 86_400_000_000
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp() * 1_000_000)
TODAY = date(2026, 3, 1)


def append(writer: RecordingWriter, stamps_us: Sequence[int]) -> None:
    """Commit a batch of messages that came at these times; the payload is the offset."""
    table = writer.tables["messages"]
    first = table.next_offset
    packets = [b"MSG k/%d\0%d" % (at % 3, at) for at in range(first, first + len(stamps_us))]
    table.append(of_packets(first, packets, [us * 1000 for us in stamps_us], {}))


def write_segments(directory: Path, *segments: Sequence[int]) -> None:
    """Write a complete segment file for each sequence of times."""
    with RecordingWriter(directory, IDENTITY) as recording:
        for stamps_us in segments:
            append(recording, stamps_us)
            recording.tables["messages"].roll()


def messages(directory: Path) -> TableSnapshot:
    (found,) = Recording(directory).tables("messages").values()
    return found


def sealed_files(directory: Path) -> list[StoredFile]:
    return SealedTable(str(directory), "messages").files()


def sealer(directory: Path) -> Sealer:
    recorder = recorder_file.load(directory / RECORDER)
    assert recorder is not None
    return Sealer(directory, recorder)


def seal(directory: Path) -> None:
    sealer(directory).seal()


def offsets(table: TableSnapshot, first: int = 0, end: int = 2**62) -> list[int]:
    """The offsets of the rows between two, as often as they are read; checks the rows."""
    found: list[int] = []
    for piece in table.plan(first, end):
        in_piece: list[int] = []
        for batch in read(piece):
            in_piece += batch["offset"].to_pylist()
            assert batch["value"].to_pylist() == [b"%d" % at for at in batch["offset"].to_pylist()]
            sizes = [len(value) for value in batch["value"].to_pylist()]
            assert batch["payload_bytes"].to_pylist() == sizes
            identity = {name: set(batch[name].to_pylist()) for name in IDENTITY_COLUMNS}
            assert identity == {
                "recorder": {RECORDER},
                "incarnation": {piece.file.incarnation},
                "host": {"Host.example"},
                "bus": {"/run/sbus.socket"},
            }
        assert len(in_piece) <= piece.rows
        found += in_piece
    return sorted(found)
