"""The journal's native protocol, read back by a parser of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.unix.journal import VALUE_BYTES_MAX, Journal, encode_entry, is_journal
from tests.support.journal import JournalSocket, parse_entry

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,20}", fullmatch=True)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[JournalSocket]:
    journal = JournalSocket(tmp_path)
    yield journal
    journal.close()


@given(st.dictionaries(NAMES, st.text() | st.integers()))
def test_what_is_written_can_be_read(fields: dict[str, str | int]) -> None:
    read = parse_entry(encode_entry(fields))
    assert read == {
        name: str(value).encode(errors="backslashreplace") for name, value in fields.items()
    }


def test_the_two_forms_are_those_of_the_documentation() -> None:
    assert encode_entry({"MESSAGE": "one line"}) == b"MESSAGE=one line\n"
    assert (
        encode_entry({"MESSAGE": "two\nlines"})
        == b"MESSAGE\n\x09\x00\x00\x00\x00\x00\x00\x00two\nlines\n"
    )


def test_a_long_value_is_cut() -> None:
    (value,) = parse_entry(encode_entry({"MESSAGE": "x" * (VALUE_BYTES_MAX + 1)})).values()
    assert value == b"x" * VALUE_BYTES_MAX


def test_an_entry_is_a_datagram(there: JournalSocket) -> None:
    journal = Journal(there.path)
    assert journal.write({"MESSAGE": "a", "PRIORITY": 3})
    assert journal.write({"MESSAGE": "b"})
    journal.close()
    assert there.entries() == [{"MESSAGE": b"a", "PRIORITY": b"3"}, {"MESSAGE": b"b"}]


def test_a_journal_that_does_not_read_does_not_block_us(there: JournalSocket) -> None:
    journal = Journal(there.path)
    written = 0
    while journal.write({"MESSAGE": f"{written}"}):
        written += 1
    assert [entry["MESSAGE"] for entry in there.entries()] == [
        b"%d" % number for number in range(written)
    ]
    assert journal.write({"MESSAGE": "there is room again"})
    journal.close()


def test_a_journal_that_is_restarted_is_found_again(tmp_path: Path) -> None:
    first = JournalSocket(tmp_path)
    journal = Journal(first.path)
    assert journal.write({"MESSAGE": "a"})
    first.close()
    assert not journal.write({"MESSAGE": "b"})
    os.unlink(first.path)
    assert not journal.write({"MESSAGE": "c"})
    second = JournalSocket(tmp_path)
    assert journal.write({"MESSAGE": "d"})
    assert second.entries() == [{"MESSAGE": b"d"}]
    journal.close()
    second.close()


def test_whether_a_stream_is_the_journals(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as stream:
        status = os.fstat(stream.fileno())
        mine = f"{status.st_dev}:{status.st_ino}"
        assert is_journal(stream.fileno(), mine)
        assert not is_journal(stream.fileno(), f"{status.st_dev}:{status.st_ino + 1}")
        assert not is_journal(stream.fileno(), None)
        assert not is_journal(stream.fileno(), "nonsense")
        fd = stream.fileno()
    assert not is_journal(fd, mine)
