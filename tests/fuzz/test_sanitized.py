"""The compiled step under sanitizers: a portion of what `tests/sanitized` runs."""

import subprocess
from pathlib import Path

from tests.support.needs import needs_compiled_step

PROJECT = Path(__file__).resolve().parents[2]
TESTS = ("test_ordinary_step.py", "test_step_deaths.py")


@needs_compiled_step
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
