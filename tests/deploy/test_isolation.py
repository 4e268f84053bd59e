"""The programs import nothing from the directory in which they are started."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.deploy.booted import PROJECT, UNITS
from tests.support.bus import sbusd_environment

PLANTED = ("click", "trio", "msgspec", "ctypes", "rich", "gc")


def plant_modules(directory: Path) -> None:
    """Modules by the names of those that the programs import; each ends its process."""
    for name in PLANTED:
        (directory / f"{name}.py").write_text("import os\nos._exit(66)\n")


@pytest.mark.parametrize("name", ["sbusd", "sbusctl"])
@pytest.mark.parametrize("words", [("--version",), ("--help",)])
def test_modules_in_the_working_directory_are_not_imported(
    tmp_path: Path, name: str, words: Sequence[str]
) -> None:
    plant_modules(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", f"sbus.cli.{name}", *words],
        cwd=tmp_path,
        env=sbusd_environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert name.encode() in done.stdout


def test_what_runs_a_bus_later_comes_from_nowhere_else(tmp_path: Path) -> None:
    """A bad limit is found by modules that are imported after the start."""
    plant_modules(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "sbus.cli.sbusd", "--limit", "workers=1", "--print-config"],
        cwd=tmp_path,
        env=sbusd_environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert b"there is no limit" in done.stderr


def test_units_and_images_run_python_without_the_working_directory() -> None:
    commands = [
        line
        for path in [*UNITS.rglob("*.service"), PROJECT / "deploy/container/Containerfile"]
        for line in path.read_text().splitlines()
        if re.search(r"\bpython3?\b.* -m sbus", line)
    ]
    assert [line for line in commands if not re.search(r" -[IP] ", line)] == []
    launcher = (PROJECT / "deploy/debian/launcher").read_text()
    assert launcher.startswith("#!/usr/bin/python3 -I\n")
