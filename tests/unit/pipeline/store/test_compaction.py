"""Compaction: the rows stay, and a power failure at any instant loses none."""

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable

from sbus.pipeline.store import compaction, sealed_table
from sbus.pipeline.store.reader import RecordingChanged
from sbus.pipeline.store.sealed_table import SealedTable, SealedTableFailed
from sbus.pipeline.store.sealing import Interrupted, Sealer
from sbus.pipeline.store.writer import RecordingWriter
from tests.support.object_storage import BUCKET, object_storage
from tests.support.written import (
    DAY_US,
    IDENTITY,
    NOON_US,
    RECORDER,
    append,
    messages,
    offsets,
    seal,
    write_segments,
)
from tests.unit.pipeline.store.test_sealing import TOMORROW, as_delta, compact, drop, shown


def test_compaction_merges_the_files_of_a_past_day(tmp_path: Path) -> None:
    tomorrow_us = NOON_US + DAY_US
    write_segments(tmp_path, [NOON_US], [NOON_US + 1], [NOON_US + 2], [tomorrow_us], [tomorrow_us])
    seal(tmp_path)
    before = messages(tmp_path)
    compact(tmp_path)
    assert shown(tmp_path) == [
        ("2026-03-01", 0, 3, 3),
        ("2026-03-02", 3, 4, 1),
        ("2026-03-02", 4, 5, 1),
    ]
    assert offsets(messages(tmp_path)) == as_delta(tmp_path) == offsets(before) == [0, 1, 2, 3, 4]
    done = as_delta(tmp_path), len(list(tmp_path.rglob("*.json")))
    compact(tmp_path)
    assert (as_delta(tmp_path), len(list(tmp_path.rglob("*.json")))) == done, "nothing is left"
    drop(tmp_path, 0, grace_hours=1)
    assert offsets(before) == [0, 1, 2, 3, 4]
    drop(tmp_path, 0)
    assert len(list(tmp_path.rglob("*.parquet"))) == 3
    with pytest.raises(RecordingChanged):
        offsets(before)


class Syncs:
    """Every `fsync`, in order: the path, and how many commits the table had at that time."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._log = directory / "messages" / "_delta_log"
        self._seen: list[tuple[Path, int]] = []
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._note)

    def _note(self, descriptor: int) -> None:
        self._fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._seen.append((path, len(self.commits())))

    def commits(self) -> list[Path]:
        return sorted(self._log.glob("*.json"))

    def all_of(self, paths: Iterable[Path], *, before: int) -> bool:
        """Whether they were brought to disk in this order, before the table had this commit."""
        early = iter([path for path, commits in self._seen if commits <= before])
        return all(path in early for path in paths)

    def after(self, commit: int) -> set[Path]:
        """What was brought to disk when the table had this commit."""
        return {path for path, commits in self._seen if commits > commit}


def added(commit: Path) -> list[str]:
    """The paths of the files that a commit lists, below the table."""
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    return [unquote(action["add"]["path"]) for action in actions if "add" in action]


def test_files_are_on_disk_before_the_commit_that_lists_them_and_it_soon_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(tmp_path, monkeypatch)
    write_segments(tmp_path, [NOON_US], [NOON_US + 1], [NOON_US + DAY_US])
    seal(tmp_path)
    compact(tmp_path)
    drop(tmp_path, NOON_US + 2 * DAY_US, seconds=DAY_US * 1.5 / 1e6)
    table, commits = tmp_path / "messages", syncs.commits()
    listing = [place for place, commit in enumerate(commits) if added(commit)]
    assert len(listing) == 4, "three seals, compaction"
    assert len(commits) == len(listing) + 4, "and creation, retention, vacuum's beginning and end"
    for place in listing:
        for name in added(commits[place]):
            path = table / name
            folders = [it for it in path.parents if it.is_relative_to(tmp_path)]
            assert syncs.all_of([path, *folders], before=place), name
    for place, commit in enumerate(commits):
        assert {commit, commit.parent} <= syncs.after(place)
    assert {table, tmp_path} <= syncs.after(0), "they have the names of the log and the table"


def test_old_commits_are_deleted_when_their_checkpoint_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(tmp_path, monkeypatch)
    monkeypatch.setattr(sealed_table, "CHECKPOINT_COMMITS", 2)
    at_cleanup: list[set[Path]] = []

    class Cleaned(DeltaTable):
        def cleanup_metadata(self) -> None:
            at_cleanup.append(syncs.after(0))
            super().cleanup_metadata()

    monkeypatch.setattr(sealed_table, "DeltaTable", Cleaned)
    write_segments(tmp_path, [NOON_US], [NOON_US + 1], [NOON_US + 2])
    seal(tmp_path)
    log = tmp_path / "messages" / "_delta_log"
    checkpoints = set(log.glob("*.checkpoint.parquet"))
    assert len(checkpoints) == len(at_cleanup) == 1
    assert {*checkpoints, log / "_last_checkpoint", log} <= at_cleanup[0]
    assert offsets(messages(tmp_path)) == as_delta(tmp_path) == [0, 1, 2]


def test_of_two_compactions_of_the_same_files_one_fails(tmp_path: Path) -> None:
    """Two recorders of the same name may write to one table."""
    write_segments(tmp_path, [NOON_US], [NOON_US + 1])
    seal(tmp_path)
    early = SealedTable(str(tmp_path), "messages")
    write_segments(tmp_path, [NOON_US + 2])
    seal(tmp_path)
    late = SealedTable(str(tmp_path), "messages")
    compaction.compact(early, RECORDER, TOMORROW)
    with pytest.raises(SealedTableFailed):
        compaction.compact(late, RECORDER, TOMORROW)
    assert offsets(messages(tmp_path)) == as_delta(tmp_path) == [0, 1, 2]


def test_files_in_object_storage_are_merged_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_storage(tmp_path / "log") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        uri = f"s3://{BUCKET}/{tmp_path.name}"
        with RecordingWriter(tmp_path / "hot", IDENTITY, uri) as recording:
            for at_us in (NOON_US, NOON_US + 1, NOON_US + DAY_US):
                append(recording, [at_us] * 2)
                recording.roll()
            Sealer(tmp_path / "hot", recording.recorder).seal()
        table = SealedTable(uri, "messages")
        compaction.compact(table, RECORDER, TOMORROW)
        assert [(file.first, file.end) for file in table.files()] == [(0, 4), (4, 6)]
        assert offsets(messages(tmp_path / "hot")) == [0, 1, 2, 3, 4, 5]


def test_interrupted_compaction_changes_nothing(tmp_path: Path) -> None:
    write_segments(tmp_path, [NOON_US], [NOON_US + 1])
    seal(tmp_path)
    before, stop = shown(tmp_path), threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        compaction.compact(SealedTable(str(tmp_path), "messages"), RECORDER, TOMORROW, stop)
    assert shown(tmp_path) == before
    compact(tmp_path)
    assert offsets(messages(tmp_path)) == as_delta(tmp_path) == [0, 1]
