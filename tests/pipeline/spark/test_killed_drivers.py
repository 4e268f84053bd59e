"""A driver in a process of its own is killed at any instant, and the session of the tests goes on
with its streams.

SBUS_TEST_KILLS sets how many times it is killed.
"""

import os
import random
import subprocess
import threading
import time
from collections import Counter
from datetime import date
from pathlib import Path

from pyspark.sql import SparkSession

import sbus
from sbus.pipeline.spark.publication import SYNC_MESSAGES
from sbus.pipeline.spark.staging import Staging
from sbus.pipeline.store.compaction import compact
from sbus.pipeline.store.sealed_table import SealedTable
from tests.support.bus import Bus, kill_tree
from tests.support.small_recording import SmallRecorder, numbered
from tests.support.spark_program import (
    PROGRAM,
    program_environment,
    publish,
    stream_once,
    streamed,
)
from tests.support.threads import meanwhile, wait_until

KILLS = int(os.environ.get("SBUS_TEST_KILLS", "1"))
SEED = int(os.environ.get("SBUS_TEST_SEED", "1"))
START_SECONDS_MAX = 400.0
GRACE_SECONDS = 60.0
"""A batch of a stream may take so long on a busy host; a recorder leaves its readers an hour."""
BATCH_ROWS = 50
PUBLISHED_BATCH_ROWS = 4 * SYNC_MESSAGES
UNPUBLISHED_ROWS = 5 * PUBLISHED_BATCH_ROWS
"""At least, when a driver starts."""


def grow(recorder: SmallRecorder, directory: Path, stop: threading.Event) -> None:
    """Record numbered messages all the time, and seal and compact them."""
    while not stop.wait(0.02):
        recorder.record(numbered(BATCH_ROWS, recorder.end))
        if recorder.end % (20 * BATCH_ROWS) == 0:
            recorder.roll()
            recorder.seal(GRACE_SECONDS)
        if recorder.end % (100 * BATCH_ROWS) == 0:
            compact(SealedTable(str(directory), "messages"), recorder.name, date.max)


def committed(checkpoint: Path) -> int:
    """How many batches are done according to the checkpoint."""
    folder = checkpoint / "commits"
    return sum(path.name.isdecimal() for path in folder.iterdir()) if folder.is_dir() else 0


def test_a_driver_that_is_killed_writes_every_row_once_and_publishes_what_it_did_not_count(
    tmp_path: Path, bus: Bus, spark: SparkSession
) -> None:
    """It publishes when it is killed, at least the first time."""
    recording, out, checkpoint = (tmp_path / name for name in ("rec", "out", "checkpoint"))
    to_publish, publishing = tmp_path / "to_publish", tmp_path / "publishing"
    chance = random.Random(SEED)
    staging = Staging(str(publishing))
    paths = (str(recording), str(out), str(checkpoint))
    published = (str(to_publish), bus.address, str(publishing), str(PUBLISHED_BATCH_ROWS))
    uncounted: set[int] = set()
    received: Counter[int] = Counter()
    with (
        SmallRecorder(recording) as recorder,
        SmallRecorder(to_publish) as publisher,
        sbus.blocking.connect(bus.address) as subscriber,
        meanwhile(lambda stop: grow(recorder, recording, stop)),
    ):
        subscriber.subscribe("")
        subscriber.sync()
        for kill in range(KILLS):
            before = counted(staging)
            while publisher.end < before + UNPUBLISHED_ROWS:
                publisher.record(numbered(PUBLISHED_BATCH_ROWS, publisher.end))
            process = subprocess.Popen([*PROGRAM, *paths, *published], env=program_environment())
            try:
                wait_until(
                    lambda before=before: counted(staging) > before,  # type: ignore[misc]
                    "rows that are published",
                    timeout_s=START_SECONDS_MAX,
                )
                if kill % 2 == 0:
                    time.sleep(chance.uniform(0, 1.0))
            finally:
                kill_tree(process)
            uncounted.update(range(counted(staging), counted(staging) + SYNC_MESSAGES))
            received.update(newly_received(subscriber))
        publish(spark, *published)
        received.update(newly_received(subscriber))
    stream_once(spark, *paths)
    rows = streamed(spark, str(out))
    assert sorted(offset for offset, _ in rows) == list(range(recorder.end))
    assert {int(value) == offset for offset, value in rows} == {True}
    assert committed(checkpoint) > KILLS
    assert sorted(received) == list(range(publisher.end))
    twice = {number for number, times in received.items() if times > 1}
    assert twice <= uncounted
    assert received.total() <= publisher.end + KILLS * SYNC_MESSAGES
    print(f"{KILLS} kills: {len(rows)} rows, each once; {len(twice)} were published twice")


def newly_received(subscriber: sbus.blocking.Connection[sbus.Message]) -> list[int]:
    """The numbers that were published since the last call."""
    subscriber.sync()
    return [int(subscriber.receive().payload) for _ in range(subscriber.statistics().messages)]


def counted(staging: Staging) -> int:
    """How many rows are published according to the ledger."""
    ledger = staging.load()
    if ledger is None:
        return 0
    of_batch = ledger.published if ledger.files else PUBLISHED_BATCH_ROWS
    return ledger.batch * PUBLISHED_BATCH_ROWS + of_batch
