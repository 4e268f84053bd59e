"""Staged rows and the ledger, in a directory and in a file system of another kind."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from sbus.pipeline.spark import staging
from sbus.pipeline.spark.publication import ROWS
from sbus.pipeline.spark.staging import Ledger, Staging


@pytest.fixture(params=["directory", "elsewhere"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Staging:
    if request.param == "directory":
        return Staging(str(tmp_path / "checkpoint"))
    elsewhere = fs._MockFileSystem()
    monkeypatch.setattr(staging, "file_system", lambda uri: (elsewhere, uri.partition("//")[2]))
    return Staging("mock://bucket/checkpoint")


def batch(*payloads: bytes) -> pa.RecordBatch:
    return pa.record_batch([[b"k"] * len(payloads), payloads], schema=ROWS)


def payloads(place: Staging, *names: str) -> list[bytes]:
    return [value for rows in place.rows(names) for value in rows["value"].to_pylist()]


def test_rows_are_read_as_they_were_staged(place: Staging) -> None:
    first = place.stage([batch(b"1", b"2"), batch(b"3")], ROWS)
    second = place.stage([batch(b"", b"\xff\x00")], ROWS)
    assert payloads(place, second, first) == [b"", b"\xff\x00", b"1", b"2", b"3"]


def test_only_what_the_ledger_names_is_kept(place: Staging) -> None:
    place.delete_others([])
    names = [place.stage([batch(b"%d" % number)], ROWS) for number in range(3)]
    place.delete_others(names[1:2])
    assert payloads(place, names[1]) == [b"1"]
    for name in (names[0], names[2]):
        with pytest.raises(FileNotFoundError):
            payloads(place, name)


def test_the_ledger_is_replaced(place: Staging) -> None:
    with place.locked():
        assert place.load() is None
        for ledger in (Ledger(7, ["a", "b"]), Ledger(7, ["a", "b"], 1_000), Ledger(7, [], 1_234)):
            place.save(ledger)
            assert place.load() == ledger
