"""The whole demo, as in the README but shorter, ends with a page about it."""

import re
import subprocess
import sys
from pathlib import Path

from sbus.pipeline.store.reader import Recording, read
from tests.support.bus import sbusd_environment
from tests.support.spark_program import JAVA_OPTIONS

DEMO = (sys.executable, "-m", "sbus.demo", "--workers", "2", "--seconds", "1")
SECONDS_MAX = 600.0


def test_the_demo_makes_a_report_of_itself(tmp_path: Path) -> None:
    # Java tells of options that it finds in a variable of its own.
    for_java = {"SPARK_SUBMIT_OPTS": JAVA_OPTIONS}
    environment = {**sbusd_environment(), **for_java, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        DEMO, env=environment, capture_output=True, timeout=SECONDS_MAX, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition("/")[0] for line in done.stderr.splitlines()] == [
        "sbusctl: recording to "
    ]
    (page,) = tmp_path.glob("sbus-report-*/report.html")
    assert f"Look at it: {page}" in done.stdout
    text = page.read_text(encoding="utf-8")
    assert "demo-machine" in text
    assert "demo-everything" in text, "who asked for it"
    total = next(line for line in done.stdout.splitlines() if line.startswith("total "))
    keys = [key for key in recorded(page.parent / "recording") if not key.startswith("sbus/probe/")]
    assert len(keys) == int(total.split()[1].replace(",", "")) + 1, "and the word that it ends"


def test_live_messages_do_not_wait_for_the_installation_of_spark(tmp_path: Path) -> None:
    """The installation here goes on until the first show has ended. What it installs records, and
    notes which report it is to make."""
    checkout, shown, asked = tmp_path / "checkout", tmp_path / "shown", tmp_path / "asked"
    write_program(checkout / "deploy/setup-venv", f"while [ ! -e {shown} ]; do sleep 0.05; done")
    write_program(
        checkout / ".venv/bin/python",
        f'case " $* " in *" report "*) echo "$*" >{asked} ;; *) exec {sys.executable} "$@" ;; esac',
    )
    environment = {**sbusd_environment(), "TMPDIR": str(tmp_path)}
    command = [*DEMO, "--set-up", str(checkout)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            lines = []
            for line in demo.stdout:
                lines.append(line)
                if line.startswith("It was one order"):
                    shown.touch()
            assert demo.wait(SECONDS_MAX) == 0
        finally:
            demo.kill()
    text = "".join(lines)
    first, installed, rest = text.partition("Spark is installed, after ")
    assert installed
    assert "+" in first, "live messages"
    assert "Once more, and recorded:" in rest
    (page,) = re.findall("^Look at it: (.+)$", rest, re.MULTILINE)
    words = asked.read_text().split()
    assert page in words
    assert recorded(Path(words[-1])), "the second time"


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def recorded(directory: Path) -> list[str]:
    (table,) = Recording(directory).tables("messages").values()
    pieces = table.plan(table.earliest, table.end)
    return [key for piece in pieces for batch in read(piece) for key in batch["key"].to_pylist()]
