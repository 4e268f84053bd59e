"""How far a channel was imported, as the next process finds it."""

from pathlib import Path

import pytest

from sbus.bridge.ledger import Gap
from sbus.bridge.progress import RECORDS_MAX, Progress
from sbus.errors import ConfigurationError


def test_the_next_process_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    path = tmp_path / "lamps.progress"
    progress = Progress(path)
    assert (progress.next_in_stream, progress.ledgers()) == (0, {})
    progress.note("a", "aa", 1)
    progress.note("b", "bb", 7)
    progress.note("a", "aa", 2)
    progress.note("a", "cc", 4)
    progress.next_in_stream = 12
    # It is not closed: a process that is killed closes nothing.
    again = Progress(path)
    ledgers = again.ledgers()
    assert again.next_in_stream == 12
    assert (ledgers["a"].epoch, ledgers["a"].next) == ("cc", 5)
    assert (ledgers["b"].epoch, ledgers["b"].next) == ("bb", 8)
    assert ledgers["a"].feed("", "aa", 3, "late", 0.0) == []
    assert ledgers["a"].feed("", "cc", 6, "x", 0.0) == [Gap("cc", 5, 1), "x"]


def test_forgets_the_epochs_of_the_past_before_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "lamps.progress"
    progress = Progress(path)
    for number in range(RECORDS_MAX - 1):
        progress.note("a", f"{number:x}", number)
    progress.next_in_stream = 3
    again = Progress(path)
    assert (again.ledgers()["a"].next, again.next_in_stream) == (RECORDS_MAX - 1, 3)
    again.note("a", "ffffffff", 1)
    again.note("b", "00", 1)
    assert again.ledgers()["a"].epoch == "ffffffff"


def test_forgets_the_past_also_while_it_runs(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "lamps.progress")
    for number in range(RECORDS_MAX + 10):
        progress.note("a", f"{number:x}", number)
    assert progress.ledgers()["a"].next == RECORDS_MAX + 10


def test_refuses_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "lamps.progress"
    path.write_bytes(b"\xff" * 1_000)
    with pytest.raises(ConfigurationError, match=r"lamps.progress is no file of a bridge"):
        Progress(path)


def test_forgets_what_the_bus_did_not_confirm(tmp_path: Path) -> None:
    path = tmp_path / "lamps.progress"
    progress = Progress(path)
    progress.note("a", "aa", 5)
    snapshot = progress.snapshot()
    progress.note("a", "aa", 6)
    progress.note("a", "bb", 2)
    progress.note("new", "cc", 3)
    progress.restore(snapshot)
    for found in (progress, Progress(path)):
        ledgers = found.ledgers()
        assert (list(ledgers), ledgers["a"].epoch, ledgers["a"].next) == (["a"], "aa", 6)
    progress.note("new", "cc", 1)
    assert progress.ledgers()["new"].next == 2
