"""The callback timer: what a task does between two checkpoints, and which task it was."""

import time

import pytest
import trio

from sbus.broker.front.callback_timer import ADMINISTRATION, CallbackTimer
from sbus.limits import OPERATION_CPU_SECONDS_MAX
from sbus.shared.operation_times import OperationTimes, longest_operations, operation_words

LONG_SECONDS = 2 * OPERATION_CPU_SECONDS_MAX["callback"]


async def test_a_task_that_does_not_let_others_run_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    for name in ("perf_counter", "thread_time"):
        monkeypatch.setattr(time, name, lambda: now)
    words = memoryview(bytearray(8 * operation_words(1))).cast("Q")
    reports: list[tuple[str, str]] = []
    times = OperationTimes(words, 0, lambda kind, what, *_: reports.append((kind, what)))

    async def answers() -> None:
        nonlocal now
        await trio.lowlevel.checkpoint()
        now += 1.5 * LONG_SECONDS
        await trio.lowlevel.checkpoint()

    async def accepts() -> None:
        nonlocal now
        for _ in range(10):
            now += LONG_SECONDS / 4
            await trio.lowlevel.checkpoint()
        now += LONG_SECONDS

    timer = CallbackTimer(times)
    trio.lowlevel.add_instrument(timer)
    try:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(answers, name=ADMINISTRATION)
            tasks.start_soon(accepts, name="accepting")
    finally:
        trio.lowlevel.remove_instrument(timer)
    assert reports == [("answer", ADMINISTRATION), ("callback", "accepting")]
    found = {it.kind: it.seconds for it in longest_operations(words, 0)}
    assert found == pytest.approx({"callback": LONG_SECONDS, "answer": 1.5 * LONG_SECONDS})
