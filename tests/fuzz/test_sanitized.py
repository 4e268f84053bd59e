"""The compiled step under sanitizers: a portion of what `tests/sanitized` runs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sbus.compiled import STEP

PROJECT = Path(__file__).resolve().parents[2]
TESTS = ("test_ordinary_step.py", "test_step_deaths.py")


@pytest.mark.skipif(STEP == "python", reason="the step is not compiled here")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="sanitizers come with gcc")
def test_the_step_under_sanitizers() -> None:
    paths = [f"tests/unit/broker/worker/{name}" for name in TESTS]
    done = subprocess.run(
        [PROJECT / "tests/sanitized", "--hypothesis-profile=quick", *paths],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
