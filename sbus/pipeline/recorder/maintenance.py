"""Maintenance of a recording beside recording: sealing and retention.

It runs every few seconds in a thread of low priority, so it does not hold up recording. What fails,
for want of room for example, is reported once and tried again.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from sbus.errors import SbusError
from sbus.pipeline.store.retention import Retention, delete_orphans, delete_retired, drop_expired
from sbus.pipeline.store.rewriting import Interrupted, seal

_INTERVAL_SECONDS = 5.0
_NICE = 10


async def maintain(
    directory: Path, recorder: str, retention: Retention, report: Callable[[str], None]
) -> None:
    """Seal, drop and delete what is due, until cancelled."""
    reported = ""
    while True:
        problems = await _run_in_thread(partial(_maintain_once, directory, recorder, retention))
        if problems and problems != reported:
            report(f"will be tried again: {problems}")
        reported = problems
        await trio.sleep(_INTERVAL_SECONDS)


def _maintain_once(
    directory: Path, recorder: str, retention: Retention, stop: threading.Event
) -> str:
    """Returns what failed."""
    now_us = time.time_ns() // 1000
    steps = [
        partial(step, directory, recorder, retention, now_us)
        for step in (drop_expired, delete_retired, delete_orphans)
    ]
    problems = []
    for step in (*steps, partial(seal, directory, recorder, stop)):
        try:
            step()
        except Interrupted:
            break
        except (SbusError, OSError) as error:
            problems.append(str(error))
    return "; ".join(problems)


async def _run_in_thread(work: Callable[[threading.Event], str]) -> str:
    """Call `work` in a thread of low priority. On cancellation its event is set, and it is awaited.

    The thread is not one of trio's: those are used again, and a lowered priority would remain.
    """
    stop, done = threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    with ThreadPoolExecutor(1, "sbus-maintenance", _lower_priority) as executor:
        future = executor.submit(work, stop)
        future.add_done_callback(lambda _: token.run_sync_soon(done.set))
        try:
            await done.wait()
        finally:
            stop.set()
            with trio.CancelScope(shield=True):
                await done.wait()
    return future.result()


def _lower_priority() -> None:
    with suppress(PermissionError):  # then the thread keeps the priority it has
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
