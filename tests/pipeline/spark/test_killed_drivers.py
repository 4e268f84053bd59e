"""Drivers in processes of their own are killed at any instant, and the session of the tests goes on
with their streams.

SBUS_TEST_KILLS sets how many times each stream is killed.
"""

import os
import random
import subprocess
import sys
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
from tests.support.spark_program import PROGRAM, program_environment, stream_once, streamed
from tests.support.spark_publisher import publish
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


def test_a_stream_that_is_killed_at_any_instant_has_every_row_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    recording, out, checkpoint = (tmp_path / name for name in ("rec", "out", "checkpoint"))
    chance = random.Random(SEED)
    paths = (str(recording), str(out), str(checkpoint))
    with (
        SmallRecorder(recording) as recorder,
        meanwhile(lambda stop: grow(recorder, recording, stop)),
    ):
        for _ in range(KILLS):
            before = committed(checkpoint)
            process = subprocess.Popen([*PROGRAM, "local[2]", *paths], env=program_environment())
            try:
                wait_until(
                    lambda before=before: committed(checkpoint) > before,  # type: ignore[misc]
                    "a batch",
                    timeout_s=START_SECONDS_MAX,
                )
                time.sleep(chance.uniform(0, 1.0))
            finally:
                kill_tree(process)
    stream_once(spark, *paths)
    rows = streamed(spark, str(out))
    assert sorted(offset for offset, _ in rows) == list(range(recorder.end))
    assert {int(value) == offset for offset, value in rows} == {True}
    print(f"{KILLS} kills, {committed(checkpoint)} batches: {len(rows)} rows, each once")


def test_a_stream_that_is_killed_publishes_again_only_what_it_did_not_count(
    tmp_path: Path, bus: Bus, spark: SparkSession
) -> None:
    """The first time and every second one after, the driver is killed while it publishes."""
    recording, checkpoint = tmp_path / "rec", tmp_path / "checkpoint"
    chance = random.Random(SEED)
    staging = Staging(str(checkpoint))
    arguments = (str(recording), bus.address, str(checkpoint), str(PUBLISHED_BATCH_ROWS))
    command = [sys.executable, "-m", "tests.support.spark_publisher", *arguments]
    uncounted: set[int] = set()
    received: Counter[int] = Counter()
    with (
        SmallRecorder(recording) as recorder,
        sbus.blocking.connect(bus.address) as subscriber,
    ):
        subscriber.subscribe("")
        subscriber.sync()
        for kill in range(KILLS):
            before = counted(staging)
            while recorder.end < before + UNPUBLISHED_ROWS:
                recorder.record(numbered(PUBLISHED_BATCH_ROWS, recorder.end))
            process = subprocess.Popen(command, env=program_environment())
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
        publish(spark, *arguments)
        received.update(newly_received(subscriber))
    assert sorted(received) == list(range(recorder.end))
    twice = {number for number, times in received.items() if times > 1}
    assert twice <= uncounted
    assert received.total() <= recorder.end + KILLS * SYNC_MESSAGES
    print(f"{KILLS} kills: {len(twice)} of {recorder.end} rows were published twice")


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
