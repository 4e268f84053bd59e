"""Planning: from options and offsets to the pieces that each task reads.

The offset of a stream is `{"recorder@incarnation": next offset}` for all recorders of a directory.
A plan is made with one reading of the recording, so it has every row once, whatever is sealed,
compacted or dropped meanwhile. A recorder that an offset does not name is newer, and is read from
its beginning; so is a recording that was deleted and begun anew, which has another incarnation.

This module does not import Spark.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence

from sbus.errors import ConfigurationError, SbusError
from sbus.pipeline.spark.options import EARLIEST, LATEST, Bound
from sbus.pipeline.store.reader import Tables, TableSnapshot
from sbus.pipeline.store.recorder_file import recorder_of
from sbus.pipeline.store.stored_file import Piece

Offsets = dict[str, int]
"""For the qualified name of each recorder the next offset."""

TASK_ROWS_MAX = 1_000_000
"""About what a task reads in a second, of small rows. Larger tasks would leave other processors
idle, smaller ones would cost more to start than to read."""
SMALL_ROW_BYTES = 128
"""In its file. A row counts once for each multiple of it."""


class DataLost(SbusError):
    """Rows that a stream was to read no longer exist."""


def ends(found: Tables) -> Offsets:
    return {recorder: table.end for recorder, table in found.items()}


def resolve(bound: Bound, found: Tables) -> Offsets:
    """The offsets that a bound stands for now. It may name recorders without their incarnations,
    if they have only one. A recorder that it does not name is read whole.

    Raises ConfigurationError for unknown and ambiguous names, and for offsets beyond the end.
    """
    if bound.timestamp_us is not None:
        moment = bound.timestamp_us
        return {recorder: table.offset_at(moment) for recorder, table in found.items()}
    given = dict(bound.offsets or {})
    for recorder in bound.offsets or {}:
        names = [name for name in found if recorder in (name, recorder_of(name))]
        if not names:
            known = ", ".join(found) or "none"
            raise ConfigurationError(
                f"{bound.option}: no recorder is called {recorder!r}; there is {known}"
            )
        if len(names) > 1:
            raise ConfigurationError(
                f"{bound.option}: {recorder!r} was begun anew, so an offset of it has several "
                f"meanings: name {' or '.join(names)}"
            )
        given[names[0]] = given.pop(recorder)
    unnamed = bound.everywhere
    if unnamed is None:
        unnamed = EARLIEST if bound.option.startswith("starting") else LATEST
    return {
        recorder: _place(bound, recorder, given.get(recorder, unnamed), table)
        for recorder, table in found.items()
    }


def _place(bound: Bound, recorder: str, offset: int, table: TableSnapshot) -> int:
    if offset == EARLIEST:
        return table.earliest
    if offset == LATEST:
        return table.end
    if offset > table.end:
        raise ConfigurationError(
            f"{bound.option}: {recorder} ends at {table.end}, there is no offset {offset} yet"
        )
    return offset


def check_range(start: Offsets, end: Offsets) -> None:
    """Raises ConfigurationError for a range that ends before it begins."""
    for recorder, last in end.items():
        if start[recorder] > last:
            raise ConfigurationError(
                f"the range of {recorder} begins at offset {start[recorder]} and ends before, at "
                f"{last}: see startingOffsets, startingTimestamp, endingOffsets, endingTimestamp"
            )


def advance(start: Offsets, end: Offsets, found: Tables, rows_max: int) -> Offsets:
    """As far from `start` towards `end` as `rows_max` rows allow, shared by the recorders in
    proportion to the rows that they have waiting."""
    rows = waiting(start, end, found)
    total = sum(rows.values())
    if total <= rows_max:
        return end
    taken = {name: count * rows_max // total for name, count in rows.items()}
    left = rows_max - sum(taken.values())
    # Rounding leaves less than a row for each; those go to the recorders with the smallest shares.
    for name in sorted(end, key=lambda name: (taken[name], name)):
        if left and taken[name] < rows[name]:
            taken[name] += 1
            left -= 1
    return {name: last - rows[name] + taken[name] for name, last in end.items()}


def waiting(start: Offsets, end: Offsets, found: Tables) -> dict[str, int]:
    """The number of rows from `start` to `end`, by recorder."""
    return {name: max(0, last - _begin(start, name, found)) for name, last in end.items()}


def _begin(start: Offsets, recorder: str, found: Tables) -> int:
    table = found.get(recorder)
    return start.get(recorder, table.earliest if table is not None else 0)


def begun_anew(start: Offsets, found: Tables) -> set[str]:
    """The names in `start` whose recorders have begun another recording since."""
    recorders = set(map(recorder_of, found))
    return {name for name in start if name not in found and recorder_of(name) in recorders}


def pieces(found: Tables, start: Offsets, end: Offsets, *, fail_on_data_loss: bool) -> list[Piece]:
    """The pieces with the rows from `start` to `end`.

    Where such rows no longer exist, it raises DataLost, or warns if not `fail_on_data_loss`.
    """
    for name in start.keys() - end.keys():
        _lose(fail_on_data_loss, f"{name} was deleted after offset {start[name]}, and begun anew")
    planned: list[Piece] = []
    for recorder, last in end.items():
        first = _begin(start, recorder, found)
        if first >= last:
            if first > last:
                _lose(fail_on_data_loss, f"{recorder} went back from offset {first} to {last}")
            continue
        table = found.get(recorder)
        if table is None:
            _lose(fail_on_data_loss, f"{recorder} is gone, with its rows from {first} to {last}")
            continue
        if first < table.earliest:
            gone = min(last, table.earliest)
            _lose(fail_on_data_loss, f"rows {first} to {gone} of {recorder} have expired")
        if last > table.end:
            kept = max(first, table.end)
            _lose(fail_on_data_loss, f"rows {kept} to {last} of {recorder} are not there any more")
        planned += table.plan(first, last)
    return planned


def _lose(fail: bool, what: str) -> None:
    if fail:
        raise DataLost(
            f"{what}: set failOnDataLoss to false to go on without them, or begin anew with "
            "another checkpoint"
        )
    warnings.warn(f"sbus: {what}, going on without them", stacklevel=2)


def share(
    planned: Sequence[Piece], tasks_min: int, rows_max: int | None = None
) -> list[list[Piece]]:
    """Divide the pieces, in order, among as few tasks as `TASK_ROWS_MAX`, `tasks_min` and
    `rows_max` allow. Each task has about the same share of the rows, by their weights."""
    weight = sum(piece.rows * _weight(piece) for piece in planned)
    tasks = max(tasks_min, -(-weight // TASK_ROWS_MAX))
    if rows_max is None:
        return _divide(planned, tasks, _weight)
    # Where some rows count more than others, tasks have different numbers of them.
    shares = _divide(planned, max(tasks, _tasks_of(planned, rows_max)), _weight)
    return [part for own in shares for part in _divide(own, _tasks_of(own, rows_max))]


def _tasks_of(pieces: Sequence[Piece], rows_max: int) -> int:
    return -(-sum(piece.rows for piece in pieces) // rows_max)


def _weight(piece: Piece) -> int:
    """As how many small rows each row of the piece counts."""
    return max(1, piece.file.bytes // max(1, piece.file.rows) // SMALL_ROW_BYTES)


def _divide(
    planned: Sequence[Piece], tasks: int, weight: Callable[[Piece], int] = lambda piece: 1
) -> list[list[Piece]]:
    """Among so many tasks, or one for each row if there are fewer."""
    total = sum(piece.rows * weight(piece) for piece in planned)
    tasks = min(tasks, sum(piece.rows for piece in planned))
    shares: list[list[Piece]] = [[] for _ in range(tasks)]
    before = 0
    for piece in planned:
        for task, part in _cut(piece, weight(piece), before, total, tasks):
            shares[task].append(part)
        before += piece.rows * weight(piece)
    return [pieces for pieces in shares if pieces]


def _cut(
    piece: Piece, weight: int, before: int, total: int, tasks: int
) -> Iterable[tuple[int, Piece]]:
    """The parts of a piece, with the task for each; task t begins at t/tasks of the total weight,
    of which `before` precedes the piece."""
    if piece.rows != piece.end - piece.first:
        # The file lacks some of these offsets, so the number of rows in a part is unknown.
        yield before * tasks // total, piece
        return
    at = piece.first
    while at < piece.end:
        task = (before + (at - piece.first) * weight) * tasks // total
        task_end = -(-(task + 1) * total // tasks)
        end = min(piece.end, piece.first - (before - task_end) // weight)
        yield task, dataclasses.replace(piece, first=at, end=end, rows=end - at)
        at = end
