"""A recording that is looked at again and again: changes are seen, and only they are read."""

from pathlib import Path

import pytest

from sbus.pipeline import manifest
from sbus.pipeline.spark.watching import Watch
from tests.support.small_recording import SmallRecorder, numbered


def ends(watch: Watch) -> list[int]:
    return [table.end for table in watch.tables().values()]


def test_every_change_is_seen_at_once(tmp_path: Path) -> None:
    watch = Watch(str(tmp_path), "messages")
    assert ends(watch) == []
    with SmallRecorder(tmp_path) as alder:
        assert ends(watch) == [0]
        alder.record(numbered(3))
        assert ends(watch) == [3]
        alder.record(numbered(2))
        assert ends(watch) == [5]
        alder.roll()
        assert ends(watch) == [5]
        alder.record(numbered(1))
        with SmallRecorder(tmp_path, "birch") as birch:
            birch.record(numbered(2))
            assert ends(watch) == [6, 2]
        with manifest.edit(tmp_path, alder.name) as change:
            change.set_table("messages", 5, change.table("messages").files[1:])
        assert [table.earliest for table in watch.tables().values()] == [5, 0]


def test_nothing_is_read_again_while_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(str(tmp_path), "messages")
    with SmallRecorder(tmp_path) as alder:
        alder.record(numbered(3))
        first = watch.tables()
        with monkeypatch.context() as patched:
            patched.setattr(manifest, "load", None)
            assert watch.tables() == first
