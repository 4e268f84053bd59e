"""The housekeeper of a recorder: puts the recording in order, again and again, beside recording.

It works in a thread of its own with a low priority, so that recording does not wait for it. What it
cannot do, for want of room for example, is said once and tried again.

Knows nothing of buses.
"""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from sbus.errors import SbusError
from sbus.pipeline import housekeeping
from sbus.pipeline.housekeeping import Keeping
from sbus.pipeline.rewriting import Interrupted

_INTERVAL_SECONDS = 5.0
_NICE = 10


async def keep_house(
    directory: Path, recorder: str, keeping: Keeping, say: Callable[[str], None]
) -> None:
    """Seal, drop and delete what is due, until cancelled."""
    said = ""
    while True:
        problems = await _run_beside(partial(_tidy, directory, recorder, keeping))
        if problems and problems != said:
            say(f"will be tried again: {problems}")
        said = problems
        await trio.sleep(_INTERVAL_SECONDS)


def _tidy(directory: Path, recorder: str, keeping: Keeping, stop: threading.Event) -> str:
    """Do what is due; returns what could not be done."""
    now_us = time.time_ns() // 1000
    problems = []
    for work in (
        partial(housekeeping.drop_old, directory, recorder, keeping, now_us),
        partial(housekeeping.delete_retired, directory, recorder, keeping, now_us),
        partial(housekeeping.delete_leftovers, directory, recorder, keeping, now_us),
        partial(housekeeping.seal, directory, recorder, stop),
    ):
        try:
            work()
        except Interrupted:
            break
        except (SbusError, OSError) as error:
            problems.append(str(error))
    return "; ".join(problems)


async def _run_beside(work: Callable[[threading.Event], str]) -> str:
    """Call `work` in a thread that yields to others; its event asks it to end early."""
    stop, done = threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    results: list[str] = []

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            results.append(work(stop))
        finally:
            token.run_sync_soon(done.set)

    thread = threading.Thread(target=run, name="sbus-housekeeper")
    thread.start()
    try:
        await done.wait()
    finally:
        stop.set()
        with trio.CancelScope(shield=True):
            await done.wait()
        thread.join()
    return "".join(results)
