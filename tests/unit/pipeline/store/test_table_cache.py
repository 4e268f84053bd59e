"""A table that is asked for repeatedly: changes are seen, and nothing else is read again."""

from pathlib import Path

import pytest

from sbus.pipeline.store.reader import Recording, TableCache
from sbus.pipeline.store.sealed_table import SealedTable
from tests.support.small_recording import SmallRecorder, numbered


def ends(cache: TableCache) -> list[int]:
    return [table.end for table in cache.tables().values()]


def test_every_change_is_seen_immediately(tmp_path: Path) -> None:
    cache = TableCache(str(tmp_path), "messages")
    assert ends(cache) == []
    with SmallRecorder(tmp_path) as alder:
        assert ends(cache) == [0]
        alder.record(numbered(3))
        assert ends(cache) == [3]
        alder.record(numbered(2))
        assert ends(cache) == [5]
        alder.roll()
        assert ends(cache) == [5]
        alder.record(numbered(1))
        with SmallRecorder(tmp_path, "birch") as birch:
            birch.record(numbered(2))
            assert ends(cache) == [6, 2]
        alder.seal()
        assert ends(cache) == [6, 2]
        SealedTable(str(tmp_path), "messages").remove(
            cache.tables()[alder.qualified_name].files[:1]
        )
        assert [table.earliest for table in cache.tables().values()] == [5, 0]


def test_nothing_is_read_again_without_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = TableCache(str(tmp_path), "messages")
    with SmallRecorder(tmp_path) as alder:
        alder.record(numbered(3))
        first = cache.tables()
        with monkeypatch.context() as patched:
            patched.setattr(Recording, "tables", None)
            patched.setattr(Path, "open", None)
            patched.setattr(Path, "read_bytes", None)
            assert cache.tables() == first
