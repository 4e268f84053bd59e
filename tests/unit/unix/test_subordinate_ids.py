"""Subordinate ids: the ranges of a file, as they are and after changes."""

import os
from pathlib import Path

import pytest

from sbus.unix.subordinate_ids import SubordinateIds

OWNER = 70_001


def ids_of(path: Path, *lines: str) -> SubordinateIds:
    path.write_text("".join(f"{line}\n" for line in lines))
    return SubordinateIds(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "subuid"


def test_an_id_of_a_range_counts_as_its_owner_and_any_other_as_itself(file: Path) -> None:
    ids = ids_of(file, f"{OWNER}:200000:100", "70002:300000:1")
    for uid in (200_000, 200_050, 200_099):
        assert ids.owner(uid) == OWNER
    assert ids.owner(300_000) == 70_002
    for uid in (0, 1_000, OWNER, 199_999, 200_100, 299_999, 300_001, 2**32 - 2):
        assert ids.owner(uid) == uid


def test_the_ids_of_a_range_of_root_count_as_its_first(file: Path) -> None:
    ids = ids_of(file, "root:100000:65536", "0:400000:10")
    assert ids.owner(100_000) == ids.owner(165_535) == 100_000
    assert ids.owner(400_009) == 400_000


def test_root_is_nobody_else(file: Path) -> None:
    assert ids_of(file, f"{OWNER}:0:100000").owner(0) == 0


def test_of_ranges_with_ids_in_common_the_one_that_begins_first_decides(file: Path) -> None:
    ids = ids_of(file, "70003:150:100", f"{OWNER}:100:100", "70004:110:5")
    assert ids.owner(112) == ids.owner(199) == OWNER
    assert ids.owner(200) == ids.owner(249) == 70_003


@pytest.mark.parametrize(
    "line",
    [
        *("", "# comment", "a:b", "70001:x:5", "70001:5:x", ":100000:65536", "70001:1:2:3"),
        *("no-such-user-here:100:100", "70001:100:0", "70001:100:-5", "99999999999:100:10", "\0"),
    ],
)
def test_a_line_with_a_mistake_means_nothing(file: Path, line: str) -> None:
    ids = ids_of(file, line, f"{OWNER}:200000:100")
    assert ids.owner(102) == 102
    assert ids.owner(200_001) == OWNER


def test_a_file_that_changes_appears_or_vanishes_is_noticed(file: Path) -> None:
    ids = SubordinateIds(file)
    assert ids.owner(200_000) == 200_000
    file.write_text(f"{OWNER}:200000:100\n")
    assert ids.owner(200_000) == OWNER
    other = file.with_suffix(".new")
    other.write_text("70002:200000:100\n")
    os.replace(other, file)
    assert ids.owner(200_000) == 70_002
    file.unlink()
    assert ids.owner(200_000) == 200_000


def test_what_is_not_text_is_no_error(file: Path) -> None:
    file.write_bytes(b"\xff\xfe:1:2\n%d:200000:100\n" % OWNER)
    assert SubordinateIds(file).owner(200_001) == OWNER
