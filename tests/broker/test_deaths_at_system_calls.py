"""A worker may die before any of its system calls, and its clients miss nothing unannounced.

All of the calls: `python -m tests.broker.deaths_at_system_calls`.
"""

import shutil
from pathlib import Path

import pytest

from tests.broker.deaths_at_system_calls import run_all

pytestmark = pytest.mark.skipif(not shutil.which("strace"), reason="no strace")


def test_every_promise_is_kept(tmp_path: Path) -> None:
    assert run_all(tmp_path, first=4, step=17) >= 5
