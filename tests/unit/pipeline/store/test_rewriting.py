"""Sealing, compaction and retention: readers see every row once, before and after."""

import os
import threading
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.errors import ConfigurationError
from sbus.pipeline.store import manifest
from sbus.pipeline.store.reader import RecordingChanged, read
from sbus.pipeline.store.retention import Retention, delete_orphans, delete_retired, drop_expired
from sbus.pipeline.store.rewriting import Interrupted, compact, replace, rewrite
from sbus.pipeline.store.schemas import MESSAGES, TABLES
from sbus.pipeline.store.writer import RecordingWriter
from tests.support.threads import meanwhile
from tests.support.written import (
    DAY_US,
    IDENTITY,
    NOON_US,
    RECORDER,
    TODAY,
    append,
    files,
    messages,
    offsets,
    seal,
    write_segments,
)

KEEP_ALL = Retention(seconds=None, bytes=None, grace_seconds=0)
TOMORROW = TODAY + timedelta(days=1)
HALF_DAY_US = DAY_US // 2
SECONDS = st.integers(0, 3 * 86_400)


def on_disk(directory: Path) -> set[str]:
    """Files with rows, listed or not."""
    found = [*directory.rglob("*.arrows"), *directory.rglob("*.parquet")]
    return {str(path.relative_to(directory)) for path in found}


def test_a_column_that_was_added_later_is_null_in_older_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segments(tmp_path, [NOON_US], [NOON_US + 1])
    first, _ = files(tmp_path)
    rewrite(tmp_path, RECORDER, "messages", [first])
    later = MESSAGES.append(pa.field("colour", pa.string()))
    monkeypatch.setitem(TABLES, "messages", later)
    table = messages(tmp_path)
    batches = [batch for piece in table.plan(0, 2) for batch in read(piece)]
    assert [batch.schema for batch in batches] == [later, later]
    pieces = table.plan(0, 2)
    found = [
        row for piece in pieces for b in read(piece, ["colour", "value"]) for row in b.to_pylist()
    ]
    assert found == [{"value": b"0", "colour": None}, {"value": b"1", "colour": None}]
    seal(tmp_path)
    assert pq.read_schema(tmp_path / files(tmp_path)[1].path).equals(later)


def test_a_sealed_segment_file_is_parquet_with_the_same_rows(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US, NOON_US + 1])
    before = messages(tmp_path)
    seal(tmp_path)
    (file,) = files(tmp_path)
    assert file.path == (
        f"messages/date=2026-03-01/host=Host.example/{RECORDER}-{0:020}-{1:020}.parquet"
    )
    assert (file.kind, file.first, file.end, file.rows, file.ranges) == ("parquet", 0, 2, 2, None)
    assert (file.min_timestamp_us, file.max_timestamp_us) == (NOON_US, NOON_US + 1)
    assert file.bytes == (tmp_path / file.path).stat().st_size
    assert pq.read_schema(tmp_path / file.path).equals(MESSAGES)
    assert offsets(messages(tmp_path)) == [0, 1]
    assert offsets(before) == [0, 1], "who planned before can still read"


def test_midnight_divides_a_segment_file_into_two_files(tmp_path: Path) -> None:
    midnight_us = NOON_US + HALF_DAY_US
    write_segments(tmp_path, [midnight_us - 1, midnight_us, midnight_us + 1])
    seal(tmp_path)
    assert [(f.path.split("/")[1], f.first, f.end, f.ranges) for f in files(tmp_path)] == [
        ("date=2026-03-01", 0, 1, None),
        ("date=2026-03-02", 1, 3, None),
    ]
    assert offsets(messages(tmp_path)) == [0, 1, 2]


def test_after_a_clock_was_set_back_a_file_lists_its_ranges(tmp_path: Path) -> None:
    midnight_us = NOON_US + HALF_DAY_US
    write_segments(tmp_path, [midnight_us - 1, midnight_us, midnight_us - 2, midnight_us + 5])
    seal(tmp_path)
    assert [(f.path.split("/")[1], f.first, f.end, f.ranges) for f in files(tmp_path)] == [
        ("date=2026-03-01", 0, 3, [(0, 1), (2, 3)]),
        ("date=2026-03-02", 1, 4, [(1, 2), (3, 4)]),
    ]
    for first in range(5):
        for end in range(first, 5):
            assert offsets(messages(tmp_path), first, end) == list(range(first, end))


def test_retired_files_are_deleted_after_the_grace_period(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US])
    before = messages(tmp_path)
    seal(tmp_path)
    (retired,) = manifest.load(tmp_path, RECORDER).retired
    patient = Retention(seconds=None, bytes=None, grace_seconds=60)
    delete_retired(tmp_path, RECORDER, patient, retired.since_us + 59_999_999)
    assert offsets(before) == [0]
    delete_retired(tmp_path, RECORDER, patient, retired.since_us + 60_000_000)
    assert on_disk(tmp_path) == {file.path for file in files(tmp_path)}
    assert not list(tmp_path.rglob("*.index"))
    assert manifest.load(tmp_path, RECORDER).retired == []
    with pytest.raises(RecordingChanged, match=retired.path):
        offsets(before)


def test_interrupted_sealing_changes_nothing(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US])
    before = manifest.load(tmp_path, RECORDER)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        rewrite(tmp_path, RECORDER, "messages", before.tables["messages"].files, stop=stop)
    assert manifest.load(tmp_path, RECORDER) == before
    assert not [path for path in (tmp_path / "messages").rglob("*") if path.is_file()]


def test_files_are_only_replaced_by_files_with_the_same_rows(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US], [NOON_US + 1])
    first, second = files(tmp_path)
    with pytest.raises(ConfigurationError, match="same offsets"):
        replace(tmp_path, RECORDER, "messages", [first], [second])
    seal(tmp_path)
    with pytest.raises(ConfigurationError, match="no longer"):
        rewrite(tmp_path, RECORDER, "messages", [first])


def test_compaction_merges_the_files_of_a_past_day(tmp_path: Path) -> None:
    tomorrow_us = NOON_US + DAY_US
    write_segments(tmp_path, [NOON_US], [NOON_US + 1], [NOON_US + 2], [tomorrow_us], [tomorrow_us])
    seal(tmp_path)
    before = messages(tmp_path)
    (new,) = compact(tmp_path, before=TOMORROW)
    assert new.path.endswith(f"/{RECORDER}-{0:020}-{2:020}-g1.parquet")
    assert [(file.first, file.end) for file in files(tmp_path)] == [(0, 3), (3, 4), (4, 5)]
    assert offsets(messages(tmp_path)) == offsets(before) == [0, 1, 2, 3, 4]
    assert compact(tmp_path, before=TOMORROW) == [], "there is nothing left to do"


def test_compaction_respects_the_size_of_files(tmp_path: Path) -> None:
    write_segments(tmp_path, *([NOON_US + at] for at in range(5)))
    seal(tmp_path)
    size = max(file.bytes or 0 for file in files(tmp_path))
    compact(tmp_path, before=TOMORROW, small_bytes=2 * size + 1)
    assert [(file.first, file.end) for file in files(tmp_path)] == [(0, 2), (2, 4), (4, 5)]
    assert offsets(messages(tmp_path)) == [0, 1, 2, 3, 4]


def test_old_files_are_dropped_from_the_front(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US], [NOON_US + DAY_US], [NOON_US + 2 * DAY_US])
    seal(tmp_path)
    keeping = Retention(seconds=DAY_US / 1e6, bytes=None, grace_seconds=0)
    drop_expired(tmp_path, RECORDER, keeping, NOON_US + 2 * DAY_US)
    assert (messages(tmp_path).earliest, offsets(messages(tmp_path))) == (1, [1, 2])
    drop_expired(tmp_path, RECORDER, keeping, NOON_US + 9 * DAY_US)
    assert (messages(tmp_path).earliest, offsets(messages(tmp_path))) == (3, [])
    with RecordingWriter(tmp_path, IDENTITY) as writer:
        assert writer.tables["messages"].next_offset == 3, "no offset is used twice"
        append(writer, [NOON_US + 9 * DAY_US])
        drop_expired(tmp_path, RECORDER, keeping, NOON_US + 99 * DAY_US)
        assert offsets(messages(tmp_path)) == [3], "what is being written stays"


def test_the_oldest_files_are_dropped_beyond_the_size(tmp_path: Path) -> None:
    write_segments(tmp_path, *([NOON_US + at] for at in range(4)))
    seal(tmp_path)
    sizes = [file.bytes or 0 for file in files(tmp_path)]
    drop_expired(
        tmp_path, RECORDER, Retention(seconds=None, bytes=sum(sizes[2:]), grace_seconds=0), NOON_US
    )
    assert offsets(messages(tmp_path)) == [2, 3]


def test_retention_leaves_no_holes_where_days_overlap(tmp_path: Path) -> None:
    midnight_us = NOON_US + HALF_DAY_US
    write_segments(tmp_path, [midnight_us - 1, midnight_us, midnight_us - 2], [midnight_us])
    seal(tmp_path)
    day_before = Retention(seconds=1, bytes=None, grace_seconds=0)
    drop_expired(tmp_path, RECORDER, day_before, midnight_us + 500_000)
    assert offsets(messages(tmp_path)) == [0, 1, 2, 3], "one of the two files is not old"
    drop_expired(tmp_path, RECORDER, day_before, midnight_us + 2_000_000)
    assert offsets(messages(tmp_path)) == []


def test_orphaned_files_are_deleted_after_a_while(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US])
    seal(tmp_path)
    (listed,) = files(tmp_path)
    folder = (tmp_path / listed.path).parent
    old = [folder / f".{RECORDER}-1-2", folder / f"{RECORDER}-7-8-g1.parquet"]
    others = [folder / "other-00000000-7-8.parquet", folder / f".{RECORDER}-3-4"]
    for path in (*old, *others):
        path.touch()
    for path in (tmp_path / listed.path, *old, others[0]):
        os.utime(path, (0, 0))
    delete_orphans(tmp_path, RECORDER, KEEP_ALL, manifest.load(tmp_path, RECORDER).updated_us)
    assert set(folder.iterdir()) == {tmp_path / listed.path, *others}


def test_readers_see_every_row_once_while_files_change(tmp_path: Path) -> None:
    """One thread writes, seals, compacts and drops; another plans and reads all the time."""
    write_segments(tmp_path, [NOON_US])
    patient = Retention(seconds=None, bytes=20_000, grace_seconds=60)
    seen: list[tuple[int, int]] = []

    def look(stop: threading.Event) -> None:
        while not stop.is_set():
            table = messages(tmp_path)
            assert offsets(table) == list(range(table.earliest, table.end))
            seen.append((table.earliest, table.end))

    with meanwhile(look), RecordingWriter(tmp_path, IDENTITY) as writer:
        for at in range(30):
            day_us = NOON_US + at // 5 * DAY_US
            append(writer, [day_us + at, day_us + at + 1])
            append(writer, [day_us + at] * 3)
            if at % 2:
                writer.tables["messages"].roll()
                seal(tmp_path)
            if at % 7 == 6:
                compact(tmp_path, before=TODAY + timedelta(days=at // 5))
                drop_expired(tmp_path, RECORDER, patient, NOON_US)
                delete_retired(tmp_path, RECORDER, patient, NOON_US)
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
    assert messages(tmp_path).earliest > 0, "something was dropped"


@settings(max_examples=15)
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
