"""The name of a program, whatever it calls itself."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus.unix.program import program_name


@pytest.fixture
def own_name() -> Iterator[Path]:
    comm = Path("/proc/self/comm")
    before = comm.read_bytes()
    yield comm
    comm.write_bytes(before)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (b"plain", "plain"),
        (b"a b", "a b"),
        (b"two\nlines", "two\\nlines"),
        (b"\x1b[31mred", "\\x1b[31mred"),
        (b"\xc3\xa9", "\\\\xc3\\\\xa9"),
    ],
)
def test_no_byte_of_a_name_can_forge_or_colour_a_line(
    own_name: Path, given: bytes, shown: str
) -> None:
    own_name.write_bytes(given)
    assert program_name(os.getpid()) == shown
    assert shown.isprintable()


@pytest.mark.parametrize("pid", [0, 2**22 + 1, -1])
def test_a_process_that_is_not_there_has_no_name(pid: int) -> None:
    assert program_name(pid) == "?"
