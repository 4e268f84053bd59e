"""How far a channel was imported, as the next process finds it."""

from pathlib import Path

import pytest

from sbus.bridge.ledger import Gap
from sbus.bridge.progress import ORIGINS_MAX, Progress
from sbus.errors import ConfigurationError
from sbus.unix.state_file import StateFile


def test_the_next_process_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    path = tmp_path / "lamps.progress"
    progress = Progress(path)
    assert (progress.next_in_stream, progress.ledgers()) == (0, {})
    progress.note("a", "aa", 1)
    progress.note("b", "bb", 7)
    progress.note("a", "aa", 2)
    progress.note("a", "cc", 4)
    progress.save()
    progress.next_in_stream = 12
    # It is not closed: a process that is killed closes nothing.
    again = Progress(path)
    ledgers = again.ledgers()
    assert again.next_in_stream == 12
    assert (ledgers["a"].epoch, ledgers["a"].next) == ("cc", 5)
    assert (ledgers["b"].epoch, ledgers["b"].next) == ("bb", 8)
    assert ledgers["a"].feed("", "aa", 3, "late", 0.0) == []
    assert ledgers["a"].feed("", "cc", 6, "x", 0.0) == [Gap("cc", 5, 1), "x"]


def test_has_room_for_all_origins_with_epochs_without_end(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "lamps.progress")
    for epoch in range(10):
        for number in range(ORIGINS_MAX):
            progress.note(f"{number:064}", f"{epoch:032x}", 2**63)
    progress.save()
    ledgers = Progress(tmp_path / "lamps.progress").ledgers()
    assert len(ledgers) == ORIGINS_MAX
    assert {it.epoch for it in ledgers.values()} == {f"{9:032x}"}


def test_a_file_of_the_version_before_counts_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "lamps.progress"
    StateFile[tuple[int, dict[str, list[tuple[str, int]]]]](path, (0, {}), 1_048_576).write(
        (6, {"a": [("aa", 4)]})
    )
    progress = Progress(path)
    assert (progress.next_in_stream, progress.counts_from) == (6, 6)
    assert progress.ledgers()["a"].next == 5
    progress.note_removed(6)
    assert not progress.has_missed
    progress.note_removed(7)
    assert Progress(path).has_missed


def test_refuses_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "lamps.progress"
    path.write_bytes(b"\xff" * 1_000)
    with pytest.raises(ConfigurationError, match=r"lamps.progress is damaged, or no file of this"):
        Progress(path)


def test_forgets_what_was_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "lamps.progress"
    progress = Progress(path)
    progress.note("a", "aa", 5)
    progress.save()
    progress.note("a", "aa", 6)
    progress.note("a", "bb", 2)
    progress.note("new", "cc", 3)
    progress.restore()
    for found in (progress, Progress(path)):
        ledgers = found.ledgers()
        assert (list(ledgers), ledgers["a"].epoch, ledgers["a"].next) == (["a"], "aa", 6)
    progress.note("new", "cc", 1)
    assert progress.ledgers()["new"].next == 2


def test_looking_back_saves_nothing_that_was_only_noted(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "lamps.progress")
    progress.note("a", "aa", 5)
    progress.save()
    progress.note("a", "aa", 6)
    progress.next_in_stream = 3
    assert progress.ledgers()["a"].next == 7
    progress.restore()
    for found in (progress, Progress(tmp_path / "lamps.progress")):
        assert (found.next_in_stream, found.ledgers()["a"].next) == (3, 6)
