"""The whole demo, as in the README but shorter, ends with a page about it."""

import subprocess
import sys
from pathlib import Path

from sbus.pipeline.store.reader import Recording, read
from tests.support.bus import sbusd_environment

DEMO = (sys.executable, "-m", "sbus.demo", "--workers", "2", "--seconds", "1")
SECONDS_MAX = 600.0


def test_the_demo_makes_a_report_of_itself(tmp_path: Path) -> None:
    environment = {**sbusd_environment(), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        DEMO, env=environment, capture_output=True, timeout=SECONDS_MAX, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition("/")[0] for line in done.stderr.splitlines()] == [
        "sbusctl: recording to "
    ]
    (page,) = tmp_path.glob("sbus-report-*/report.html")
    assert f"Look at it:  {page}" in done.stdout
    text = page.read_text(encoding="utf-8")
    assert "demo-machine" in text
    assert "demo-everything" in text, "who asked for it"
    total = next(line for line in done.stdout.splitlines() if line.startswith("total "))
    keys = [key for key in recorded(page.parent / "recording") if not key.startswith("sbus/probe/")]
    assert len(keys) == int(total.split()[1].replace(",", "")) + 1, "and the word that it ends"


def recorded(directory: Path) -> list[str]:
    (table,) = Recording(directory).tables("messages").values()
    pieces = table.plan(table.earliest, table.end)
    return [key for piece in pieces for batch in read(piece) for key in batch["key"].to_pylist()]
