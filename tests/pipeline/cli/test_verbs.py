"""The command lines of the pipeline on a recording, and the page of the report."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from sbus.pipeline.__main__ import main, pipeline
from sbus.pipeline.report.plot import ALARM, OTHERS
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.writer import RecordingWriter
from tests.pipeline.jobs import oracles
from tests.support.recordings import HOSTS, Tables, generate, write

QUESTIONS = sorted(pipeline.commands.keys() - {"replay", "report"})
MESSAGES = 20_000


@pytest.fixture(scope="module")
def tables() -> Tables:
    return generate(MESSAGES, seed=9, seconds=600)


@pytest.fixture(scope="module")
def recording(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    write(folder, tables, batch_rows=3_000)
    return folder


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording without rows."""
    folder = tmp_path_factory.mktemp("nothing")
    with RecordingWriter(folder, RecorderIdentity.of("alder", "/run/sbus.socket")):
        return folder


@pytest.fixture(autouse=True)
def arguments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command must not see the arguments of the test runner, nor change its umask."""
    monkeypatch.setattr("sys.argv", ["pipeline"])
    umask = os.umask(0o022)
    os.umask(umask)
    yield
    os.umask(umask)


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr("sys.argv", ["pipeline", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_result_is_a_table_on_the_terminal(
    spark: SparkSession,
    recording: Path,
    tables: Tables,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "hot-keys", recording, "--top", "3") == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["KEY", "MESSAGES", "BYTES", "PUBLISHERS", "FIRST", "LAST"]
    expected = oracles.hot_keys(oracles.rows(tables.messages), 3, 1)
    shown = [line.split()[:4] for line in lines[1:]]
    assert shown == [[row[0], *map(str, row[1:4])] for row in expected]


def test_a_result_in_a_file_of_each_format(
    spark: SparkSession,
    recording: Path,
    tables: Tables,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The same rows in each format, for one host and a part of the time."""
    own = [row for row in oracles.rows(tables.messages) if row.host == HOSTS[0]]
    begin = min(row.time_us for row in own) // 60_000_000 * 60_000_000
    part = [row for row in own if begin + 120_000_000 <= row.time_us < begin + 240_000_000]
    expected = oracles.traffic(part, 1, 60_000_000)
    words: list[str | Path] = ["traffic", recording, "--host", HOSTS[0], "--depth", "1"]
    words += ["--since", "2026-03-02T23:22", "--until", "2026-03-03T00:24+01:00", "--out"]
    for ending in (".parquet", ".csv", ".json"):
        out = tmp_path / f"traffic{ending}"
        assert run(monkeypatch, *words, out) == 0
        found = {}
        for row in read(out):
            found[str(row["start"])[:16].replace("T", " "), row["prefix"]] = (
                row["messages"],
                row["bytes"],
                row["publishers"],
            )
        assert sorted(found.values()) == sorted(expected.values())
        assert {prefix for _, prefix in found} == {prefix for _, prefix in expected}
    assert len(list(tmp_path.iterdir())) == 3


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".json":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".csv":
        return list(pyarrow.csv.read_csv(path).to_pylist())
    return list(pyarrow.parquet.read_table(path).to_pylist())


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_job_on_an_empty_recording_prints_nothing(
    spark: SparkSession,
    nothing: Path,
    question: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, question, nothing) == 0
    assert capfd.readouterr().out == "nothing\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["gaps", "{empty}/none"], "is no directory"),
        (["gaps", "{empty}"], "holds no recording"),
        (["gaps", "{empty}", "--window", "5"], "'5' is no length of time"),
        (["gaps", "{empty}", "--window", "0s"], "'0s' is no length of time"),
        (["gaps", "{empty}", "--since", "yesterday"], "'yesterday' is no time"),
        (["gaps", "{nothing}", "--out", "gaps.txt"], "must end in one of .parquet, .csv, .json"),
        (["gaps", "{nothing}", "--out", "/nowhere/gaps.csv"], "there is no directory /nowhere"),
        (["report", "{nothing}", "--out", "{empty}"], "is a directory; name a file"),
        (["replay", "{nothing}", "-a", "{empty}/bus"], "{empty}/bus"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_an_error_is_one_line_with_its_reason(
    words: list[str],
    reason: str,
    nothing: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    places = {"empty": str(tmp_path), "nothing": str(nothing)}
    assert run(monkeypatch, *(word.format(**places) for word in words)) != 0
    said = capfd.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("sbus.pipeline: ")
    assert reason.format(**places) in line


# -- the page --------------------------------------------------------------------------------------
class Page(HTMLParser):
    """The elements, scripts and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.scripts[-1] += data
        elif self.lasttag != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def test_the_report_of_a_recording(
    spark: SparkSession,
    recording: Path,
    tables: Tables,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    out = tmp_path / "report.html"
    assert run(monkeypatch, "report", recording, "--out", out, "--title", "<i>Mine</i>") == 0
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    rows = oracles.rows(tables.messages)

    assert {tag for tag, _ in page.elements}.isdisjoint(
        {"i>mine", "b>www", "img", "link", "iframe"}
    )
    asked = {attrs.get(name) for _, attrs in page.elements for name in ("src", "href")} - {None}
    assert all(place is not None and place.startswith("#") for place in asked)
    sections = [attrs["id"] for tag, attrs in page.elements if tag == "section"]
    assert sections == ["glance", "flows", "slow", "lost", "unusual"]
    assert asked >= {f"#{name}" for name in sections}

    keys = {row.key for row in oracles.said(rows)}
    assert f"The busiest of {len(keys):,} keys" in page.text
    hottest = oracles.hot_keys(rows, 1, 1)[0]
    assert f"{hottest[0]} {hottest[1]:,}" in page.text
    assert "web/<script>alert(1)<" in page.text, "shown as it is"
    lost = sum(row.lost or 0 for row in rows)
    assert lost == sum(int(n) for n in re.findall(r" 12 ([\d]+) 2 ", page.text.replace(",", "")))

    figures = json.loads(page.scripts[0])
    places = [attrs["id"] for tag, attrs in page.elements if "plot" in (attrs.get("class") or "")]
    assert list(figures) == places
    assert "<" not in page.scripts[0]
    drawn = sum(
        sum(trace["y"]) for trace in figures["plot-glance-0"]["data"]
    )  # messages a second in windows of 5 s
    assert drawn * 5 == pytest.approx(len(oracles.said(rows)), rel=1e-3)
    shaded = Counter(shape["fillcolor"] for shape in figures["plot-unusual-0"]["layout"]["shapes"])
    assert shaded[OTHERS], "what is usual"
    assert shaded[ALARM], "incidents"
    assert re.search(r"market/quote was unusual from 23:2\d:\d\d to 23:2\d:\d\d: ", page.text)
    assert out.stat().st_size < 5_500_000


def test_the_report_of_an_empty_recording(
    spark: SparkSession, nothing: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    assert run(monkeypatch, "report", nothing, "--out", out) == 0
    page = Page(out.read_text(encoding="utf-8"))
    assert page.scripts == []
    for sentence in (
        "The recording holds no messages.",
        "Nobody sent anything.",
        "No clients were recorded.",
        "There are no probes in the recording, so latency is not known.",
        "Nothing is missing from the recording.",
        "No prefix strayed far from what is usual for it.",
    ):
        assert sentence in page.text
