"""Staged rows and the ledger, in a directory and in object storage."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sbus.pipeline.spark.publication import ROWS
from sbus.pipeline.spark.staging import Ledger, Staging
from tests.support.object_storage import BUCKET, object_storage


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    log = tmp_path_factory.mktemp("storage") / "log"
    with object_storage(log) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(params=["directory", "object storage"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Staging:
    if request.param == "directory":
        return Staging(str(tmp_path / "checkpoint"))
    request.getfixturevalue("storage")
    return Staging(f"s3://{BUCKET}/{tmp_path.name}/checkpoint")


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
