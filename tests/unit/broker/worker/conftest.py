"""Time for the workers of one process."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.support import compiled_step


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Lets so many seconds pass, and a little more, because a worker's times are rounded. Otherwise
    time stands still."""
    now_ns = time.monotonic_ns()

    def advance(seconds: float) -> None:
        nonlocal now_ns
        now_ns += int(seconds * 1e9) + 1_000
        compiled_step.set_clock(now_ns)

    advance(0)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: now_ns / 1e9)
    yield advance
    compiled_step.set_clock(0)
