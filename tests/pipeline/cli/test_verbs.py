"""The command lines of the pipeline on a recording."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from sbus.pipeline.__main__ import main, pipeline
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.writer import RecordingWriter
from tests.pipeline.jobs import oracles
from tests.pipeline.report.test_facts import Page
from tests.support.recordings import HOSTS, Tables, generate, write
from tests.support.small_recording import SmallRecorder

QUESTIONS = sorted(pipeline.commands.keys() - {"replay", "report"})
MESSAGES = 2_000


@pytest.fixture(scope="module")
def tables() -> Tables:
    return generate(MESSAGES, seed=9, seconds=600)


@pytest.fixture(scope="module")
def recording(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    write(folder, tables, batch_rows=300)
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


def test_a_table_of_losses_has_room_on_a_terminal(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with SmallRecorder(tmp_path) as recorder:
        recorder.record([(b"k", b"")])
        recorder.record_gap(36)
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert run(monkeypatch, "gaps", tmp_path) == 0
    assert not cache.exists(), "the session there is needs no Java, nor an archive of its classes"
    head, row = capfd.readouterr().out.splitlines()
    assert head.split() == ["RECORDER", "SINCE", "UNTIL", "GAPS", "LOST", "UNKNOWN"]
    assert row.split()[3:] == ["1", "36", "0"]
    assert len(head) - len(recorder.name) < 80 - 12, "names can be shortened"


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
        (["nonsense"], "there is no verb 'nonsense'; choose from anomalies"),
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


# -- the report ------------------------------------------------------------------------------------
def test_the_report_says_what_has_changed_since_an_earlier_recording(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with SmallRecorder(tmp_path / "before") as recorder:
        recorder.record([(b"kept", b""), (b"gone", b"")] * 100 + [(b"kept", b"")])
    with SmallRecorder(tmp_path / "now") as recorder:
        recorder.record([(b"kept", b""), (b"kept", b""), (b"new", b"")] * 100 + [(b"kept", b"")])
        recorder.record_gap(36)
        recorder.record([(b"kept", b"")])
    out = tmp_path / "report.html"
    words: list[str | Path] = [
        "report",
        tmp_path / "now",
        "--against",
        tmp_path / "before",
        "--out",
        out,
    ]
    assert run(monkeypatch, *words, "--title", "Since then") == 0
    text = Page(out.read_text(encoding="utf-8")).text
    assert "Since then" in text
    # Rows are a millisecond apart: 201 in 0.2 s, then 302 in 0.302 s.
    assert "New keys: 1, keys that are gone: 1." in text
    assert "messages a second 1005 1000 bytes" in text
    assert "messages missing an hour 0 429k new" in text
    assert "key before now change gone 500 0 gone new 0 331 new kept 505 669 +32 %" in text


def test_recordings_of_different_buses_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = []
    for host in ("alder", "birch"):
        with SmallRecorder(tmp_path / host, host) as recorder:
            names.append(recorder.name)
    out = tmp_path / "report.html"
    words: list[str | Path] = [
        "report",
        tmp_path / "alder",
        "--against",
        tmp_path / "birch",
        "--out",
        out,
    ]
    assert run(monkeypatch, *words) != 0
    assert capfd.readouterr().err == (
        f"sbus.pipeline: {tmp_path / 'birch'} is no recording of the same bus: its recorder is "
        f"{names[1]}, not {names[0]}\n"
    )


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
        "Nothing unusual was found",
    ):
        assert sentence in page.text
