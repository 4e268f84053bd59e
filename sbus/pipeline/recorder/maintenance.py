"""Maintenance of a recording beside recording: sealing, retention and compaction.

It runs every few seconds in a thread of low priority, so it does not hold up recording. What fails,
for want of room for example, is reported once and tried again.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime

import trio

from sbus.errors import SbusError
from sbus.pipeline.store.compaction import compact
from sbus.pipeline.store.retention import Retention, drop_expired
from sbus.pipeline.store.schemas import TABLES
from sbus.pipeline.store.sealed_table import SealedTable
from sbus.pipeline.store.sealing import Interrupted, Sealer

_INTERVAL_SECONDS = 5.0
_RETENTION_SECONDS = 3600.0
"""At least this often; otherwise after each file that is sealed."""
_NICE = 10


async def maintain(
    sealers: Sequence[Sealer], retention: Retention, report: Callable[[str], None]
) -> None:
    """Seal, drop and delete what is due, until cancelled. More sealers may be added meanwhile."""
    maintained: list[_Maintenance] = []
    reported = ""
    while True:
        maintained += [_Maintenance(it, retention) for it in sealers[len(maintained) :]]
        found = [await _run_in_thread(each.run) for each in maintained]
        problems = "; ".join(dict.fromkeys(filter(None, found)))
        if problems and problems != reported:
            report(f"will be tried again: {problems}")
        reported = problems
        await trio.sleep(_INTERVAL_SECONDS)


class _Maintenance:
    def __init__(self, sealer: Sealer, retention: Retention) -> None:
        self._sealer = sealer
        self._retention = retention
        self._retained_at: float | None = None

    def run(self, stop: threading.Event) -> str:
        """Returns what failed."""
        problems = []
        try:
            if self._sealer.seal(stop):
                self._retained_at = None
        except Interrupted:
            return ""
        except (SbusError, OSError) as error:
            problems.append(str(error))
        try:
            self._sealer.delete_sealed(self._retention.grace_hours * 3600)
            self._retain(stop)
        except Interrupted:
            return ""
        except (SbusError, OSError) as error:
            problems.append(str(error))
        return "; ".join(problems)

    def _retain(self, stop: threading.Event) -> None:
        """Drop what is too old or too much, merge the small files of past dates, and delete what
        nobody reads any more."""
        now = time.monotonic()
        if self._retained_at is not None and now - self._retained_at < _RETENTION_SECONDS:
            return
        recorder, now_us = self._sealer.recorder, time.time_ns() // 1000
        tables = [SealedTable(self._sealer.root, name) for name in TABLES]
        drop_expired(tables, recorder.recorder, self._retention, now_us)
        for table in tables:
            compact(table, recorder.recorder, datetime.now(UTC).date(), stop)
            table.vacuum(self._retention.grace_hours)
        self._retained_at = now


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
