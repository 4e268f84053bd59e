"""A record in a file is replaced at one instruction."""

from pathlib import Path

import msgspec
import pytest

from sbus.errors import ConfigurationError
from sbus.unix import state_file
from sbus.unix.state_file import StateFile


class Place(msgspec.Struct, frozen=True, array_like=True):
    name: str = ""
    number: int = 0


def test_is_there_again_with_its_flag(tmp_path: Path) -> None:
    path = tmp_path / "place"
    file = StateFile(path, Place())
    assert (file.state, file.flag) == (Place(), False)
    for number in range(3):
        file.write(Place("a", number), flag=True)
        again = StateFile(path, Place())
        assert (again.state, again.flag) == (Place("a", number), True)
    file.clear_flag()
    file.write(Place("b" * 100))
    assert StateFile(path, Place()).state == Place("b" * 100)
    assert not StateFile(path, Place()).flag


def test_a_death_while_it_is_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "place"
    file = StateFile(path, Place())
    file.write(Place("old", 1))
    whole = file._map

    class Dying:
        """A memory that stops at the first store."""

        def __getitem__(self, at: int) -> int:
            return whole[at]

        def __setitem__(self, at: slice, data: bytes) -> None:
            whole[at] = data
            raise KeyboardInterrupt

    monkeypatch.setattr(file, "_map", Dying())
    with pytest.raises(KeyboardInterrupt):
        file.write(Place("new", 2))
    assert StateFile(path, Place()).state == Place("old", 1)


def test_refuses_what_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "place"
    StateFile(path, Place()).write(Place("a", 1))
    path.write_bytes(b"\x01" + b"\xff" * (path.stat().st_size - 1))
    with pytest.raises(ConfigurationError, match="place is damaged, or no file of this program"):
        StateFile(path, Place())


def test_a_mapped_file_has_its_place_on_the_disk(tmp_path: Path) -> None:
    state_file.map_file(tmp_path / "x", 100_000)
    assert (tmp_path / "x").stat().st_blocks * 512 >= 100_000
