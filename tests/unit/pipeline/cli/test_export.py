"""`sbusctl export`: which rows are in the file, and how they look."""

import json
import os
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from sbus.errors import ConfigurationError
from sbus.pipeline.cli import export as command
from tests.support.small_recording import SmallRecorder, numbered


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """alder: three rows that are sealed, a key and a payload that are not UTF-8, a gap; birch: two
    rows."""
    directory = tmp_path / "recording"
    with SmallRecorder(directory) as alder, SmallRecorder(directory, "birch") as birch:
        alder.record(numbered(3))
        alder.roll()
        alder.seal()
        alder.record([(b"a\xff", b"\0\\")])
        alder.record_gap(7)
        birch.record(numbered(2))
    return directory


def export(*arguments: str | Path, umask: int = 0o022) -> Result:
    before = os.umask(umask)
    try:
        return CliRunner().invoke(command.export, [*map(str, arguments)], catch_exceptions=False)
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("suffix", "value", "umask", "mode"),
    [("parquet", b"\0\\", 0o022, 0o600), ("csv", "\\x00\\\\", 0o027, 0o640)],
)
def test_a_file_has_every_row_once(
    recorded: Path, suffix: str, value: str | bytes, umask: int, mode: int
) -> None:
    out = recorded.parent / f"rows.{suffix}"
    assert export(recorded, out, umask=umask).exit_code == 0
    table = pq.read_table(out) if suffix == "parquet" else pyarrow.csv.read_csv(out)
    rows = table.select(["host", "offset", "kind", "lost"]).to_pylist()
    expected = [
        *(("alder", at, "MSG", None) for at in range(4)),
        ("alder", 4, "GAP", 7),
        *(("birch", at, "MSG", None) for at in range(2)),
    ]
    assert [tuple(row.values()) for row in rows] == expected
    assert table["key"].to_pylist()[3] == "a\\xff"
    assert table["value"].to_pylist()[3] == value
    assert set(recorded.parent.iterdir()) == {recorded, out}
    assert out.stat().st_mode & 0o777 == mode, "only its user may read it, or its group as well"


def test_times_and_hosts_select_rows(recorded: Path) -> None:
    out = recorded.parent / "rows.json"
    bounds = ("--since", "2026-09-21T14:13:20.001Z", "--until", "2026-09-21T14:13:20.004")
    assert export(recorded, out, *bounds, "--host", "alder").exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["host"], row["offset"]) for row in rows] == [("alder", at) for at in (1, 2, 3)]
    assert rows[2]["value"] == "\\x00\\\\"


def test_other_tables_may_be_empty(recorded: Path) -> None:
    out = recorded.parent / "events.parquet"
    assert export(recorded, out, "--table", "events").exit_code == 0
    assert pq.read_table(out).num_rows == 0


def test_without_a_recording_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no recording"):
        export(tmp_path, tmp_path / "rows.csv")
    with pytest.raises(ConfigurationError, match="must end in one of"):
        export(tmp_path, tmp_path / "rows.txt")
    assert not list(tmp_path.iterdir())
