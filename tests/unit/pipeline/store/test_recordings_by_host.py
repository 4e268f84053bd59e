"""A directory with a recording for each host: its folder says the host, and all are read as one."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sbus.errors import ConfigurationError
from sbus.pipeline.store.reader import Recording, TableCache, read
from tests.support.small_recording import SmallRecorder, numbered


def record(directory: Path, host: str, count: int = 3) -> None:
    """Sealed rows, and one that is not."""
    with SmallRecorder(directory, host) as recorder:
        recorder.record(numbered(count - 1))
        recorder.roll()
        recorder.seal()
        recorder.record(numbered(1, count - 1))


def rows(directory: Path) -> list[tuple[str, int, bytes]]:
    return sorted(
        (row["host"], row["offset"], row["value"])
        for table in Recording(directory).tables("messages").values()
        for piece in table.plan(table.earliest, table.end)
        for batch in read(piece)
        for row in batch.to_pylist()
    )


def test_the_folder_says_the_host_of_all_rows(tmp_path: Path) -> None:
    record(tmp_path / "host=web1", "localhost")
    record(tmp_path / "host=rémi", "web2", 2)
    assert Recording(tmp_path).is_by_host
    assert rows(tmp_path) == [
        *(("rémi", n, b"%d" % n) for n in range(2)),
        *(("web1", n, b"%d" % n) for n in range(3)),
    ]


def test_a_host_that_appears_later_is_seen(tmp_path: Path) -> None:
    record(tmp_path / "host=web1", "web1")
    cache = TableCache(str(tmp_path), "messages")
    assert len(cache.tables()) == 1
    record(tmp_path / "host=web2", "web2")
    assert len(cache.tables()) == 2
    record(tmp_path / "host=web2", "web2", 7)
    assert sorted(table.end for table in cache.tables().values()) == [3, 10]


def above(directory: Path) -> None:
    record(directory, "web3")


def beside(directory: Path) -> None:
    (directory / "messages").mkdir()


def below(directory: Path) -> None:
    record(directory / "host=web2" / "host=web3", "web3")


@pytest.mark.parametrize("mix", [above, beside, below])
def test_another_recording_in_the_directory_is_refused(
    tmp_path: Path, mix: Callable[[Path], None]
) -> None:
    record(tmp_path / "host=web1", "web1")
    mix(tmp_path)
    with pytest.raises(ConfigurationError, match="beside or above another recording"):
        Recording(tmp_path)


def test_a_recording_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "host=web1", "web1")
    shutil.copytree(tmp_path / "host=web1", tmp_path / "host=web2")
    with pytest.raises(ConfigurationError, match=r"the recording of web1-.* twice, .*host=web2"):
        Recording(tmp_path).tables("messages")


def test_a_host_without_a_recording_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "host=web1", "web1")
    (tmp_path / "host=web2").mkdir()
    with pytest.raises(ConfigurationError, match="host=web2 holds no recording"):
        Recording(tmp_path).check()
