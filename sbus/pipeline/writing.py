"""Writing down what is pending: in batches, each in a thread, so that receiving goes on meanwhile.

Knows neither where rows come from nor what is in them.
"""

import trio

from sbus.errors import SbusError
from sbus.pipeline.pending import Pending
from sbus.pipeline.rows import Batch
from sbus.pipeline.store import Origin, Rolling, TableLog
from sbus.unix.errno_sets import DISK_FULL


class RecordingStopped(SbusError):
    """The recording cannot go on; the text says why. What was recorded is safe."""


async def write_pending(
    log: TableLog, pending: Pending, origin: Origin, rolling: Rolling, flush_seconds: float
) -> None:
    """Write what comes, until `pending` is closed and empty. Raises RecordingStopped."""
    while True:
        await pending.wait_rows()
        if not pending.rows:
            return
        with trio.move_on_after(flush_seconds):
            await pending.wait_due()
        await write(log, pending.take(origin, log.next_offset), rolling)


async def write(log: TableLog, batch: Batch, rolling: Rolling) -> None:
    """Have rows written: they have been when this returns. Raises RecordingStopped."""
    try:
        await trio.to_thread.run_sync(_append, log, batch, rolling)
    except OSError as error:
        advice = ""
        if error.errno in DISK_FULL:
            advice = ": make room, or keep less (--retain-days, --retain-bytes), and start it again"
        raise RecordingStopped(
            f"stopped, {log.name} cannot be written ({error.strerror}); all before offset "
            f"{log.next_offset} is safe{advice}"
        ) from error


def _append(log: TableLog, batch: Batch, rolling: Rolling) -> None:
    log.append(*batch)
    if log.is_due(rolling):
        log.roll()
