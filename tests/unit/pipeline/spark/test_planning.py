"""Which rows a batch of a stream has, and how tasks share them."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.errors import ConfigurationError
from sbus.pipeline.spark.options import Bound
from sbus.pipeline.spark.planning import (
    DataLost,
    Offsets,
    advance,
    begun_anew,
    check_range,
    ends,
    pieces,
    resolve,
    share,
)
from sbus.pipeline.store.reader import TableCache, TableSnapshot
from sbus.pipeline.store.recorder_file import recorder_of
from sbus.pipeline.store.sealed_table import SealedTable
from sbus.pipeline.store.stored_file import Piece, StoredFile
from tests.support.small_recording import FIRST_US, STEP_US, SmallRecorder, numbered


def piece(first: int, rows: int) -> Piece:
    return Piece(file(first, first + rows, rows), first, first + rows, rows)


def file(first: int, end: int, rows: int) -> StoredFile:
    return StoredFile(
        path="/d/f",
        table="messages",
        is_sealed=True,
        recorder="r",
        incarnation="",
        host="h",
        first=first,
        end=end,
        rows=rows,
    )


def table(earliest: int, end: int) -> TableSnapshot:
    return TableSnapshot(earliest, end, ())


@given(st.lists(st.integers(1, 60), max_size=6), st.integers(1, 9))
def test_tasks_share_all_rows_evenly_and_in_order(sizes: list[int], tasks: int) -> None:
    planned = [piece(1000 * number, rows) for number, rows in enumerate(sizes)]
    shares = share(planned, tasks)
    offsets = [offset for part in shares for one in part for offset in range(one.first, one.end)]
    assert offsets == [offset for one in planned for offset in range(one.first, one.end)]
    assert len(shares) == min(tasks, sum(sizes))
    counts = [sum(one.rows for one in part) for part in shares]
    assert not counts or max(counts) - min(counts) <= 1


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 900)), max_size=6), st.integers(1, 20))
def test_no_task_has_more_than_the_most_rows(sizes: list[tuple[int, int]], rows_max: int) -> None:
    planned = []
    for number, (rows, row_bytes) in enumerate(sizes):
        one = piece(1000 * number, rows)
        file = dataclasses.replace(one.file, bytes=rows * row_bytes)
        planned.append(dataclasses.replace(one, file=file))
    shares = share(planned, 2, rows_max)
    offsets = [offset for part in shares for one in part for offset in range(one.first, one.end)]
    assert offsets == [offset for one in planned for offset in range(one.first, one.end)]
    assert all(sum(one.rows for one in part) <= rows_max for part in shares)


def test_the_most_rows_make_as_few_tasks_as_possible() -> None:
    assert [sum(one.rows for one in part) for part in share([piece(0, 100)], 1, 30)] == [25] * 4
    assert len(share([piece(0, 100)], 7, 30)) == 7


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3_000)), max_size=6))
def test_large_rows_count_more(files: list[tuple[int, int]]) -> None:
    planned = [
        Piece(dataclasses.replace(file(0, rows, rows), bytes=rows * row_bytes), 0, rows, rows)
        for rows, row_bytes in files
    ]
    shares = share(planned, 3)
    assert [(one.file, offset) for part in shares for one in part for offset in span(one)] == [
        (one.file, offset) for one in planned for offset in span(one)
    ]
    weights = [
        sum(max(1, one.file.bytes // one.file.rows // 128) * one.rows for one in part)
        for part in shares
    ]
    assert not files or max(weights) <= sum(weights) / 3 + 3_000 // 128


def span(one: Piece) -> range:
    return range(one.first, one.end)


def test_a_task_reads_a_million_small_rows_or_as_much_of_large_ones() -> None:
    small = share([piece(0, 3_000_000)], 1)
    assert [len(span(one)) for (one,) in small] == [1_000_000] * 3
    large = dataclasses.replace(file(0, 1_000_000, 1_000_000), bytes=1_000_000 * 512)
    assert [len(span(one)) for (one,) in share([Piece(large, 0, 1_000_000, 1_000_000)], 1)] == [
        250_000
    ] * 4


def test_a_piece_with_holes_is_not_cut() -> None:
    holed = Piece(file(0, 100, 40), 0, 100, 40)
    shares = share([holed, piece(200, 60)], 4)
    assert shares[0] == [holed]
    assert [[(one.first, one.end) for one in part] for part in shares[1:]] == [
        [(200, 210)],
        [(210, 235)],
        [(235, 260)],
    ]


RECORDERS = st.dictionaries(
    st.sampled_from("abcd"), st.tuples(st.integers(0, 50), st.integers(0, 50))
)


@given(RECORDERS, st.integers(1, 80))
def test_a_limit_is_used_up_and_never_exceeded(
    waiting: dict[str, tuple[int, int]], rows_max: int
) -> None:
    start = {name: first for name, (first, _) in waiting.items()}
    end = {name: first + rows for name, (first, rows) in waiting.items()}
    found = {name: table(0, last) for name, last in end.items()}
    reached = advance(start, end, found, rows_max)
    taken = {name: reached[name] - start[name] for name in end}
    assert sum(taken.values()) == min(rows_max, sum(rows for _, rows in waiting.values()))
    assert all(0 <= taken[name] <= rows for name, (_, rows) in waiting.items())


def test_a_new_recorder_is_read_from_its_earliest_row() -> None:
    found = {"new": table(30, 40)}
    assert advance({}, {"new": 40}, found, 4) == {"new": 34}


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (0, 20, "rows 0 to 10 of r have expired"),
        (15, 25, "rows 20 to 25 of r are not there"),
        (9, 5, "went back"),
    ],
)
def test_missing_rows_are_an_error_or_a_warning(first: int, last: int, said: str) -> None:
    found = {"r": table(10, 20)}
    with pytest.raises(DataLost, match=said):
        pieces(found, {"r": first}, {"r": last}, fail_on_data_loss=True)
    with pytest.warns(UserWarning, match=said):
        pieces(found, {"r": first}, {"r": last}, fail_on_data_loss=False)


def test_a_recording_that_was_begun_anew_is_lost_data() -> None:
    found = {"r@2": table(0, 20), "s@1": table(0, 5)}
    assert begun_anew({"r@1": 10, "s@1": 5, "gone@1": 3}, found) == {"r@1"}
    assert begun_anew({"r": 10}, found) == {"r"}, "a checkpoint of an earlier version"
    assert begun_anew({"r": 10}, {"r": table(0, 20)}) == set(), "a recording of one"
    start, end = {"r@1": 10, "s@1": 5}, {"r@2": 20, "s@1": 5}
    said = "r@1 was deleted after offset 10, and begun anew"
    with pytest.raises(DataLost, match=said):
        pieces(found, start, end, fail_on_data_loss=True)
    with pytest.warns(UserWarning, match=said):
        assert pieces(found, start, end, fail_on_data_loss=False) == []


def test_a_recorder_that_is_gone_matters_only_for_rows_it_had() -> None:
    assert pieces({}, {"r": 5}, {"r": 5}, fail_on_data_loss=True) == []
    with pytest.raises(DataLost, match="r is gone"):
        pieces({}, {"r": 5}, {"r": 6}, fail_on_data_loss=True)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """alder: 0 to 9 in an ended segment, 10 to 29 in the one being written; birch: 0 to 4."""
    with SmallRecorder(tmp_path) as alder, SmallRecorder(tmp_path, "birch") as birch:
        alder.record(numbered(10))
        alder.roll()
        alder.seal()
        alder.record(numbered(20, 10))
        birch.record(numbered(5))
    return tmp_path


def name(host: str, found: Offsets) -> str:
    (recorder,) = [recorder for recorder in found if recorder.startswith(host)]
    return recorder


@pytest.mark.parametrize(
    ("bound", "alder", "birch"),
    [
        (Bound("startingOffsets", everywhere=-2), 0, 0),
        (Bound("startingOffsets", everywhere=-1), 30, 5),
        (Bound("startingTimestamp", timestamp_us=0), 0, 0),
        (Bound("startingTimestamp", timestamp_us=FIRST_US + 4 * STEP_US), 4, 4),
        (Bound("endingTimestamp", timestamp_us=FIRST_US + 4 * STEP_US + 1), 5, 5),
        (Bound("endingTimestamp", timestamp_us=FIRST_US + 12 * STEP_US), 12, 5),
        (Bound("startingTimestamp", timestamp_us=FIRST_US + 1000 * STEP_US), 30, 5),
    ],
)
def test_a_bound_stands_for_an_offset_of_each_recorder(
    recorded: Path, bound: Bound, alder: int, birch: int
) -> None:
    found = TableCache(str(recorded), "messages").tables()
    offsets = resolve(bound, found)
    assert (offsets[name("alder", offsets)], offsets[name("birch", offsets)]) == (alder, birch)


@pytest.mark.parametrize(
    ("option", "offset", "alder", "birch"),
    [
        ("startingOffsets", 7, 7, 0),
        ("startingOffsets", -1, 30, 0),
        ("endingOffsets", 7, 7, 5),
        ("endingOffsets", -2, 0, 5),
    ],
)
def test_recorders_that_a_bound_does_not_name_are_read_whole(
    recorded: Path, option: str, offset: int, alder: int, birch: int
) -> None:
    found = TableCache(str(recorded), "messages").tables()
    names = ends(found)
    offsets = resolve(Bound(option, offsets={name("alder", names): offset}), found)
    assert (offsets[name("alder", names)], offsets[name("birch", names)]) == (alder, birch)


def test_unknown_recorders_and_offsets_beyond_the_end_are_named(recorded: Path) -> None:
    found = TableCache(str(recorded), "messages").tables()
    with pytest.raises(ConfigurationError, match="nobody"):
        resolve(Bound("startingOffsets", offsets={"nobody": 1}), found)
    alder = name("alder", ends(found))
    with pytest.raises(ConfigurationError, match=f"{alder} ends at 30"):
        resolve(Bound("startingOffsets", offsets={alder: 31}), found)
    recorder = recorder_of(alder)
    assert resolve(Bound("startingOffsets", offsets={recorder: 3}), found)[alder] == 3
    with pytest.raises(ConfigurationError, match=f"'{recorder}@1'; there is {alder}"):
        resolve(Bound("startingOffsets", offsets={f"{recorder}@1": 3}), found)


def test_an_offset_of_a_recorder_that_began_anew_needs_the_incarnation() -> None:
    found = {name: TableSnapshot(0, end, ()) for name, end in (("r@b", 9), ("r@a", 4))}
    assert resolve(Bound("startingOffsets", offsets={"r@b": 3}), found) == {"r@b": 3, "r@a": 0}
    with pytest.raises(ConfigurationError, match=r"'r' was begun anew.*name r@b or r@a$"):
        resolve(Bound("startingOffsets", offsets={"r": 3}), found)


def test_a_range_may_be_empty_but_not_reversed() -> None:
    check_range({"a": 3, "b": 5}, {"a": 4, "b": 5})
    with pytest.raises(ConfigurationError, match="b begins at offset 5 and ends before, at 4"):
        check_range({"a": 3, "b": 5}, {"a": 4, "b": 4})


def test_expired_rows_are_not_planned(recorded: Path) -> None:
    alder = name("alder", ends(TableCache(str(recorded), "messages").tables()))
    table = SealedTable(str(recorded), "messages")
    old = [f for f in table.files() if (f.qualified_name, f.first) == (alder, 0)]
    table.remove(old)
    found = TableCache(str(recorded), "messages").tables()
    with pytest.warns(UserWarning, match="rows 0 to 10"):
        planned = pieces(found, {alder: 0}, {alder: 12}, fail_on_data_loss=False)
    assert [(one.first, one.end) for one in planned] == [(10, 12)]
