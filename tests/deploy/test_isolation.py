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
"""Modules that the programs import; each of these ends its process."""


@pytest.mark.parametrize(
    ("name", "words", "status", "said"),
    [
        ("sbusd", ("--version",), 0, "sbusd"),
        ("sbusd", ("--help",), 0, "sbusd"),
        ("sbusctl", ("--version",), 0, "sbusctl"),
        ("sbusctl", ("--help",), 0, "sbusctl"),
        # Found by modules that are imported after the start.
        ("sbusd", ("--limit", "workers=1", "--print-config"), 1, "there is no limit"),
    ],
)
def test_modules_in_the_working_directory_are_not_imported(
    tmp_path: Path, name: str, words: Sequence[str], status: int, said: str
) -> None:
    for planted in PLANTED:
        (tmp_path / f"{planted}.py").write_text("import os\nos._exit(66)\n")
    done = subprocess.run(
        [sys.executable, "-m", f"sbus.cli.{name}", *words],
        cwd=tmp_path,
        env=sbusd_environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert said.encode() in (done.stderr if status else done.stdout)


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
