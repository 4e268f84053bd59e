"""Results as people and programs read them."""

import json
from pathlib import Path

import pytest

from sbus.bench import BenchmarkFailed
from sbus.bench.proc import Machine
from sbus.bench.report import Result, marks, table, write_into_page


def result(**changes: object) -> Result:
    fields: dict[str, object] = {
        "name": "fan-out",
        "machine": Machine("CPU", 2, "6.1", "3.11.7", 0.0),
        "settings": {"size": 110},
        "columns": ("case", "µs"),
        "rows": [("relay", "1.20")],
        "notes": ["a note"],
        "samples": {"relay": [1.2, 1.3]},
    }
    return Result(**(fields | changes))  # type: ignore[arg-type]


def test_a_table_is_aligned_under_its_headings() -> None:
    assert table(("case", "µs"), [("a", "10.50"), ("broker", "1.25")]) == [
        "case       µs",
        "------  -----",
        "a       10.50",
        "broker   1.25",
    ]


def test_the_text_begins_with_the_machine_and_ends_with_the_notes() -> None:
    lines = result().as_text().splitlines()
    assert lines[0] == "fan-out"
    assert lines[1].startswith("CPU, 2 cores")
    assert lines[-1] == "a note"
    assert "relay  1.20" in lines


def test_the_json_holds_every_sample() -> None:
    told = json.loads(result().as_json())
    assert told["machine"]["kernel"] == "6.1"
    assert told["settings"] == {"size": 110}
    assert told["samples"] == {"relay": [1.2, 1.3]}


def test_only_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = marks("fan-out")
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    for _ in range(2):
        write_into_page(page, "fan-out", result(), "More.")
    text = page.read_text()
    assert text.startswith(f"before\n{begin}\n")
    assert text.endswith(f"{end}\nafter\n")
    assert "old" not in text
    for line in ("| relay | 1.20 |", "a note", "More."):
        assert text.splitlines().count(line) == 1


@pytest.mark.parametrize("text", ["text\n", f"{marks('fan-out')[1]}\n"])
def test_a_page_without_marks_stays_as_it_is(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(BenchmarkFailed, match="no place"):
        write_into_page(page, "fan-out", result())
    assert page.read_text() == text
