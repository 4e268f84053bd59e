"""Sealing, compaction and retention: readers see every row once, before and after."""

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.errors import ConfigurationError
from sbus.pipeline.store import compaction, reader, recorder_file, segment_file
from sbus.pipeline.store.reader import RecordingChanged, read
from sbus.pipeline.store.recorder_file import RecorderFile
from sbus.pipeline.store.retention import Retention, drop_expired
from sbus.pipeline.store.schemas import FILE_SCHEMAS, MESSAGES, PARTITIONS, TABLES
from sbus.pipeline.store.sealed_file import SealedFileWriter
from sbus.pipeline.store.sealed_table import SealedTable, SealedTableFailed
from sbus.pipeline.store.sealing import Interrupted, Sealer, _writer
from sbus.pipeline.store.segment_file import RecordingDamaged
from sbus.pipeline.store.writer import RecordingWriter
from tests.support.delta_programs import PROGRAMS, Program, deltalake
from tests.support.threads import Task, meanwhile
from tests.support.written import (
    DAY_US,
    IDENTITY,
    NOON_US,
    RECORDER,
    TODAY,
    append,
    messages,
    offsets,
    seal,
    sealed_files,
    sealer,
    write_segments,
)

TOMORROW = TODAY + timedelta(days=1)
MIDNIGHT_US = NOON_US + DAY_US // 2


def compact(directory: Path, before: date = TOMORROW) -> None:
    compaction.compact(SealedTable(str(directory), "messages"), RECORDER, before)


def drop(directory: Path, now_us: int, *, grace_hours: int = 0, **kept: Any) -> None:
    bounds = {"seconds": None, "bytes": None, **kept}
    retention = Retention(**bounds, grace_hours=grace_hours)
    tables = [SealedTable(str(directory), name) for name in TABLES]
    drop_expired(tables, RECORDER, retention, now_us)
    for table in tables:
        table.vacuum(grace_hours)


def one_recorder(directory: Path) -> RecorderFile:
    (recorder,) = recorder_file.load_all(directory)
    return recorder


def shown(directory: Path) -> list[tuple[str, int, int, int]]:
    """Date, first and end offset, and rows of the sealed files."""
    return [
        (file.path.split("date=")[1][:10], file.first, file.end, file.rows)
        for file in sealed_files(directory)
    ]


def as_delta(directory: Path, program: Program = deltalake) -> list[int]:
    """The offsets that a program finds in the table."""
    return sorted(program(str(directory / "messages"))["offset"].to_pylist())


def test_a_sealed_segment_file_is_parquet_with_the_same_rows(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US, NOON_US + 1500])
    before = messages(tmp_path)
    seal(tmp_path)
    (file,) = sealed_files(tmp_path)
    assert file.path == str(
        tmp_path
        / f"messages/date=2026-03-01/host=Host.example/recorder={RECORDER}"
        / f"incarnation={one_recorder(tmp_path).incarnation}/{0:020}.parquet"
    )
    assert (file.first, file.end, file.rows) == (0, 2, 2)
    assert file.oldest_us is not None
    assert file.newest_us is not None
    assert NOON_US - 1000 < file.oldest_us <= NOON_US
    assert NOON_US + 1500 <= file.newest_us < NOON_US + 3000
    assert file.bytes == Path(file.path).stat().st_size
    assert set(pq.read_schema(file.path).names) == set(MESSAGES.names) - set(PARTITIONS.names)
    assert offsets(messages(tmp_path)) == as_delta(tmp_path) == [0, 1]
    assert offsets(before) == [0, 1], "who planned before can still read"


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_that_read_delta_have_the_rows_of_every_column(
    tmp_path: Path, program: Program
) -> None:
    """Of files that are sealed, and of one that they are merged into."""
    write_segments(tmp_path, [NOON_US, NOON_US + 1500], [NOON_US + 3000])
    table = messages(tmp_path)
    recorded = [batch for piece in table.plan(0, table.end) for batch in read(piece)]
    seal(tmp_path)
    for _ in range(2):
        found = program(str(tmp_path / "messages")).select(MESSAGES.names).sort_by("offset")
        assert found.cast(MESSAGES).equals(pa.Table.from_batches(recorded))
        compact(tmp_path)
        SealedTable(str(tmp_path), "messages").vacuum(0)
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_midnight_divides_a_segment_file_into_two_files(tmp_path: Path) -> None:
    write_segments(tmp_path, [MIDNIGHT_US - 1, MIDNIGHT_US, MIDNIGHT_US + 1])
    seal(tmp_path)
    assert shown(tmp_path) == [("2026-03-01", 0, 1, 1), ("2026-03-02", 1, 3, 2)]
    assert offsets(messages(tmp_path)) == [0, 1, 2]


def test_after_a_clock_was_set_back_files_overlap(tmp_path: Path) -> None:
    write_segments(tmp_path, [MIDNIGHT_US - 1, MIDNIGHT_US, MIDNIGHT_US - 2, MIDNIGHT_US + 5])
    seal(tmp_path)
    assert shown(tmp_path) == [("2026-03-01", 0, 3, 2), ("2026-03-02", 1, 4, 2)]
    for first in range(5):
        for end in range(first, 5):
            assert offsets(messages(tmp_path), first, end) == list(range(first, end))


def test_rows_of_hosts_with_any_name_are_found(tmp_path: Path) -> None:
    names = ["a b", "ü/%", "host=x"]
    for name in names:
        recorder = RecorderFile(recorder="r", incarnation="i", host=name, bus="/run/bus")
        table = SealedTable(str(tmp_path), "messages")
        with _writer(table, recorder, TODAY, 0) as one:
            one.write(pa.RecordBatch.from_pylist([row("r", name)], MESSAGES))
            table.add(name, [one.finish()], 1)
    found = SealedTable(str(tmp_path), "messages").files()
    assert sorted(file.host for file in found) == sorted(names)
    assert all(Path(file.path).exists() for file in found)
    assert as_delta(tmp_path) == [0, 0, 0]


def row(recorder: str, host: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(MESSAGES.names)
    stamp = pa.scalar(NOON_US, MESSAGES.field("timestamp").type).as_py()
    return {**row, "key": "k" * 100, "recorder": recorder, "host": host} | {
        "offset": 0,
        "timestamp": stamp,
    }


def test_a_column_that_was_added_later_is_null_in_older_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segments(tmp_path, [NOON_US])
    seal(tmp_path)
    write_segments(tmp_path, [NOON_US + 1])
    colour = pa.field("colour", pa.string())
    later = MESSAGES.append(colour)
    monkeypatch.setitem(TABLES, "messages", later)
    monkeypatch.setitem(FILE_SCHEMAS, "messages", FILE_SCHEMAS["messages"].append(colour))
    for _ in range(2):
        pieces = messages(tmp_path).plan(0, 2)
        batches = [batch for piece in pieces for batch in read(piece)]
        assert [batch.schema for batch in batches] == [later, later]
        few = [
            r for piece in pieces for b in read(piece, ["colour", "value"]) for r in b.to_pylist()
        ]
        assert few == [{"value": b"0", "colour": None}, {"value": b"1", "colour": None}]
        seal(tmp_path)
    assert "colour" in DeltaTable(str(tmp_path / "messages")).to_pyarrow_table().schema.names


# -- interrupted at any point ----------------------------------------------------------------------
class Killed(BaseException):
    """The recorder is killed here."""


def killed(*_: object, **__: object) -> None:
    raise Killed


def after(call: Callable[..., Any]) -> Callable[..., Any]:
    def call_and_die(*arguments: Any, **options: Any) -> None:
        call(*arguments, **options)
        raise Killed

    return call_and_die


@pytest.mark.parametrize(
    ("owner", "name", "die"),
    [
        (SealedFileWriter, "write", killed),
        (SealedFileWriter, "write", after),
        (SealedFileWriter, "finish", killed),
        (SealedFileWriter, "finish", after),
        (SealedTable, "add", killed),
        (SealedTable, "_commit", killed),
        (SealedTable, "_commit", after),
        (SealedTable, "add", after),
        (segment_file, "delete", killed),
        (Path, "unlink", after),
    ],
)
def test_a_kill_at_any_step_of_sealing_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, die: Any
) -> None:
    write_segments(tmp_path, [MIDNIGHT_US - 1, MIDNIGHT_US], [MIDNIGHT_US + 1], [MIDNIGHT_US + 2])
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, die(getattr(owner, name)) if die is after else die)
        with pytest.raises(Killed):
            seal_and_delete(tmp_path)
    assert offsets(messages(tmp_path)) == [0, 1, 2, 3]
    with RecordingWriter(tmp_path, IDENTITY) as recording:
        assert recording.tables["messages"].next_offset == 4
        append(recording, [MIDNIGHT_US + 3])
    seal_and_delete(tmp_path)
    assert offsets(messages(tmp_path)) == as_delta(tmp_path) == [0, 1, 2, 3, 4]
    assert len(list(tmp_path.rglob("*.parquet"))) == len(sealed_files(tmp_path))
    assert len(list(tmp_path.glob("*/hot/messages-*"))) == 2, "only the one that is written"


def seal_and_delete(directory: Path) -> None:
    one = sealer(directory)
    one.seal()
    one.delete_sealed(0)


def test_interrupted_sealing_changes_nothing(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US])
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        sealer(tmp_path).seal(stop)
    assert sealed_files(tmp_path) == []
    assert offsets(messages(tmp_path)) == [0]


def test_sealed_segment_files_are_deleted_after_the_grace_period(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US])
    before = messages(tmp_path)
    one = sealer(tmp_path)
    one.delete_sealed(0)
    assert offsets(before) == [0], "it is not sealed"
    assert one.seal() == 1
    one.delete_sealed(60)
    assert offsets(before) == [0]
    one.delete_sealed(0)
    assert offsets(messages(tmp_path)) == [0]
    with pytest.raises(RecordingChanged, match="messages-0"):
        offsets(before)


def test_a_segment_file_may_be_deleted_while_a_reader_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may even be the one that was written: its rows are found where they are sealed."""
    with RecordingWriter(tmp_path, IDENTITY) as recording:
        append(recording, [NOON_US] * 3)
        recording.roll()
        append(recording, [NOON_US] * 2)

        def listed(home: Path, table: str) -> list[Path]:
            paths = segment_file.segment_files(home, table)
            recording.roll()
            one = sealer(tmp_path)
            one.seal()
            one.delete_sealed(0)
            return paths

        monkeypatch.setattr(reader, "segment_files", listed)
        table = messages(tmp_path)
        assert [file.is_sealed for file in table.files] == [True, True]
        assert offsets(table) == list(range(5))


def test_a_recorder_whose_segment_files_were_deleted_does_not_reuse_offsets(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US, NOON_US])
    seal(tmp_path)
    shutil.rmtree(tmp_path / RECORDER / "hot")
    write_segments(tmp_path, [NOON_US])
    with pytest.raises(RecordingDamaged, match="were deleted"):
        seal(tmp_path)
    assert as_delta(tmp_path) == [0, 1]


# -- retention -------------------------------------------------------------------------------------
def test_old_files_are_dropped_from_the_front(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US], [NOON_US + DAY_US], [NOON_US + 2 * DAY_US])
    seal(tmp_path)
    drop(tmp_path, NOON_US + 2 * DAY_US, seconds=DAY_US / 1e6)
    assert (messages(tmp_path).earliest, offsets(messages(tmp_path))) == (1, [1, 2])
    drop(tmp_path, NOON_US + 9 * DAY_US, seconds=DAY_US / 1e6)
    assert (messages(tmp_path).earliest, offsets(messages(tmp_path))) == (3, [])
    sealer(tmp_path).seal()
    with RecordingWriter(tmp_path, IDENTITY) as recording:
        assert recording.tables["messages"].next_offset == 3, "no offset is used twice"
        append(recording, [NOON_US + 9 * DAY_US])
        drop(tmp_path, NOON_US + 99 * DAY_US, seconds=1, bytes=0)
        assert offsets(messages(tmp_path)) == [3], "what is not sealed stays"
    assert not list(tmp_path.rglob("*.parquet"))


def test_the_oldest_files_are_dropped_beyond_the_size(tmp_path: Path) -> None:
    write_segments(tmp_path, *([NOON_US + at] for at in range(4)))
    seal(tmp_path)
    sizes = [file.bytes for file in sealed_files(tmp_path)]
    drop(tmp_path, NOON_US, bytes=sum(sizes[2:]))
    assert offsets(messages(tmp_path)) == [2, 3]


def test_rows_of_an_earlier_recording_are_dropped_as_well(tmp_path: Path) -> None:
    """The recorder's directory was deleted, as the documents advise, and it began anew."""
    for first_us in (NOON_US, NOON_US + DAY_US):
        write_segments(tmp_path, *([first_us + at] for at in range(3)))
        seal(tmp_path)
        shutil.rmtree(tmp_path / RECORDER)
    files = sorted(sealed_files(tmp_path), key=lambda file: file.newest_us or 0)
    earlier, later = (list(files[:3]), list(files[3:]))
    assert len({file.incarnation for file in files}) == 2
    drop(tmp_path, NOON_US, bytes=sum(file.bytes for file in files[2:]))
    assert sealed_paths(tmp_path) == {file.path for file in [*earlier[2:], *later]}
    drop(tmp_path, NOON_US + DAY_US, seconds=1)
    assert sealed_paths(tmp_path) == {file.path for file in later}
    drop(tmp_path, NOON_US + DAY_US, bytes=later[2].bytes)
    assert sealed_paths(tmp_path) == {later[2].path}


def sealed_paths(directory: Path) -> set[str]:
    return {file.path for file in sealed_files(directory)}


def test_retention_leaves_no_holes_where_days_overlap(tmp_path: Path) -> None:
    write_segments(tmp_path, [MIDNIGHT_US - 1, MIDNIGHT_US, MIDNIGHT_US - 2], [MIDNIGHT_US])
    seal(tmp_path)
    drop(tmp_path, MIDNIGHT_US + 500_000, seconds=1)
    assert offsets(messages(tmp_path)) == [0, 1, 2, 3], "one of the two files is not old"
    drop(tmp_path, MIDNIGHT_US + 2_000_000, seconds=1)
    assert offsets(messages(tmp_path)) == []


def test_readers_see_every_row_once_while_files_change(tmp_path: Path) -> None:
    """One thread writes, seals, compacts and drops; others plan and read all the time."""
    write_segments(tmp_path, [NOON_US])
    seal(tmp_path)
    seen: list[tuple[int, int]] = []
    ends: dict[Program, set[int]] = {program: set() for program in PROGRAMS}

    def look(stop: threading.Event) -> None:
        while not stop.is_set():
            table = messages(tmp_path)
            assert offsets(table) == list(range(table.earliest, table.end))
            seen.append((table.earliest, table.end))

    def look_with(program: Program, stop: threading.Event) -> None:
        while not stop.is_set():
            found = as_delta(tmp_path, program)
            assert found == list(range(found[0], found[-1] + 1))
            ends[program].add(found[-1])

    others = [partial(look_with, program) for program in ends]
    with meanwhile(look, *others), RecordingWriter(tmp_path, IDENTITY) as recording:
        one = sealer(tmp_path)
        for at in range(30):
            day_us = NOON_US + at // 5 * DAY_US
            append(recording, [day_us + at, day_us + at + 1])
            append(recording, [day_us + at] * 3)
            if at % 2:
                recording.tables["messages"].roll()
                one.seal()
                one.delete_sealed(60)
            if at % 7 == 6:
                compact(tmp_path, TODAY + timedelta(days=at // 5))
                drop(tmp_path, NOON_US, bytes=20_000, grace_hours=1)
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
    assert all(len(found) > 3 for found in ends.values())
    assert messages(tmp_path).earliest > 0, "something was dropped"


def test_several_recorders_seal_to_one_table_at_the_same_time(tmp_path: Path) -> None:
    """Each of its own machine, to a shared table. Only while it is made one may have to try again,
    as maintenance does."""
    root = tmp_path / "shared"

    def record(number: int) -> None:
        directory = tmp_path / str(number)
        write_segments(directory, *([NOON_US + at] for at in range(8)))
        made = one_recorder(directory)
        one = Sealer(directory, msgspec.structs.replace(made, table=str(root)))
        for _ in range(4):
            with suppress(SealedTableFailed):
                one.seal()

    for task in [Task(partial(record, number)) for number in range(4)]:
        task.join()
    assert as_delta(root) == sorted([*range(8)] * 4)


@pytest.mark.parametrize("location", ["other://host/recording", "s3://not a bucket/recording"])
def test_a_uri_that_cannot_be_written_is_one_clear_error(tmp_path: Path, location: str) -> None:
    write_segments(tmp_path, [NOON_US])
    made = msgspec.structs.replace(one_recorder(tmp_path), table=location)
    with pytest.raises(ConfigurationError, match=location):
        Sealer(tmp_path, made).seal()
    assert offsets(messages(tmp_path)) == [0]


def test_what_the_table_cannot_do_is_one_clear_error(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US])
    seal(tmp_path)
    (tmp_path / "messages" / "_delta_log" / f"{1:020}.json").write_text("no JSON\nat all")
    with pytest.raises(SealedTableFailed, match=str(tmp_path / "messages")) as caught:
        messages(tmp_path)
    assert "\n" not in str(caught.value)


@settings(max_examples=3 * settings().max_examples // 20)
@given(
    st.lists(st.lists(st.integers(0, 3 * 86_400), min_size=1, max_size=6), max_size=4), st.data()
)
def test_the_offset_at_a_timestamp_is_that_of_the_first_row_as_new(
    tmp_path_factory: pytest.TempPathFactory, segments: list[list[int]], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("recording")
    stamps_us = [[NOON_US + second * 1_000_000 for second in segment] for segment in segments]
    write_segments(directory, *stamps_us)
    if data.draw(st.booleans()):
        seal(directory)
    flat = [us for segment in stamps_us for us in segment]
    asked_us = data.draw(st.sampled_from([0, *flat, *(us + 1 for us in flat)]))
    expected = next((at for at, us in enumerate(flat) if us >= asked_us), len(flat))
    assert messages(directory).offset_at(asked_us) == expected
    assert offsets(messages(directory)) == list(range(len(flat)))
