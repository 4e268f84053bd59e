"""A benchmark's result: a table within 80 columns for people, JSON for programs."""

import dataclasses
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sbus.bench import BenchmarkFailed
from sbus.bench.proc import Machine, this_machine


@dataclass(frozen=True, kw_only=True)
class Result:
    """One benchmark, run once. `rows` are shown; `samples` is everything measured, unrounded.

    Samples may be dataclasses, in lists.
    """

    name: str
    machine: Machine = field(default_factory=this_machine)
    settings: dict[str, str | int | float]
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)
    samples: Mapping[str, object] = field(default_factory=dict)
    succeeded: bool = True

    def as_text(self) -> str:
        settings = "  ".join(f"{name}={value}" for name, value in self.settings.items())
        head = [
            textwrap.fill(text, 78, break_long_words=False, break_on_hyphens=False)
            for text in (self.name, str(self.machine), settings, "")
        ]
        tail = ["", *self.notes] if self.notes else []
        return "\n".join([*head, *table(self.columns, self.rows), *tail])

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)


def marks(section: str) -> tuple[str, str]:
    """Between these two a benchmark writes its part of a page."""
    return f"<!-- {section}: begin -->", f"<!-- {section}: end -->"


def write_into_page(page: Path, section: str, result: Result, *more: str) -> None:
    """Write a result between two marks, in Markdown, with `more` ahead of its table."""
    settings = ", ".join(f"{name.replace('_', ' ')} {v}" for name, v in result.settings.items())
    lines = [
        f"{result.machine}; {settings}.\n",
        *more,
        *markdown_table(result.columns, result.rows),
        "\n```",
        *result.notes,
        "```",
    ]
    _replace_section(page, section, lines)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    aligned = "|---" + "|---:" * (len(columns) - 1) + "|"
    return [f"| {' | '.join(columns)} |", aligned, *(f"| {' | '.join(row)} |" for row in rows)]


def _replace_section(page: Path, section: str, lines: Sequence[str]) -> None:
    """Raises BenchmarkFailed where the marks are missing."""
    begin, end = marks(section)
    before, found, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise BenchmarkFailed(f"{page} has no place for a section: {begin} and {end}")
    page.write_text("\n".join((before + begin, *lines, end + after)))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column is aligned left, the others right."""
    widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
    return [table_line(row, widths) for row in (columns, ["-" * w for w in widths], *rows)]


def table_line(row: Sequence[str], widths: Sequence[int]) -> str:
    first = row[0].ljust(widths[0])
    rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return "  ".join((first, *rest)).rstrip()
