"""A file of records: every record is found at its place, if its version is known."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.broker.ipc import records_file
from sbus.broker.ipc.client_record import UnknownVersion
from sbus.broker.ipc.records_file import RecordsFile, append_records, make_records_file

RECORDS = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=50)), max_size=30)


@pytest.fixture
def memfd() -> Iterator[int]:
    opened = make_records_file()
    yield opened
    os.close(opened)


def records_of(memfd: int) -> list[tuple[int, bytes]]:
    file = RecordsFile(memfd)
    return [(client, file[place]) for client, place in file.places()]


@given(RECORDS, RECORDS)
def test_records_are_found_as_they_were_written(
    first: list[tuple[int, bytes]], then: list[tuple[int, bytes]]
) -> None:
    memfd = make_records_file()
    append_records(memfd, first)
    append_records(memfd, then)
    assert records_of(memfd) == [*first, *then]
    os.close(memfd)


def test_large_records_are_written_in_pieces(memfd: int) -> None:
    records = [(number, bytes(700_000)) for number in range(5)]
    append_records(memfd, records)
    assert records_of(memfd) == records


@pytest.mark.parametrize("version", [(0, 9), (2, 0)])
def test_another_major_version_is_refused(
    version: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_file, "VERSION", version)
    memfd = make_records_file()
    with pytest.raises(UnknownVersion, match=rf"version {version[0]}\.{version[1]}"):
        RecordsFile(memfd)
    os.close(memfd)
