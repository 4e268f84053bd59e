"""Recorders of one recording that are killed at any instant, under load.

Committed rows are there exactly once, nothing is torn, and a GAP stands where messages are missing.
"""

import os
import random
import threading
import time
from pathlib import Path

from tests.support.bus import Bus
from tests.support.recorder_process import recorded, recorders, snapshot
from tests.support.threads import meanwhile

KILLS = int(os.environ.get("SBUS_TEST_KILLS", "8"))
SEED = int(os.environ.get("SBUS_TEST_SEED", "1"))
LIFE_SECONDS_MAX = 0.25
RUN_MESSAGES = 50


def test_committed_rows_survive_a_kill_at_any_instant(bus: Bus, tmp_path: Path) -> None:
    directory = tmp_path / "recording"
    chance = random.Random(SEED)
    options = ("--plain", "--flush-ms", "3", "--roll-bytes", "60000", "--grace-hours", "0")
    committed = 0
    goings_on = 0
    with recorders(tmp_path) as started, meanwhile(lambda stop: publish(bus, stop)):
        for _ in range(KILLS):
            recorder = started.start(bus.address, directory, *options)
            time.sleep(chance.uniform(0, LIFE_SECONDS_MAX))
            before = snapshot(directory).end
            recorder.kill()
            after = snapshot(directory).end
            assert after >= before >= committed, "what had been committed is gone"
            goings_on += after > committed > 0
            committed = after
        recorder = started.start(bus.address, directory, *options)
        recorder.stop()
    rows = recorded(directory)
    unknown_gaps = check_sequence(rows)
    assert unknown_gaps == goings_on + 1, "each that went on says so once, the last one included"
    assert len(rows) > KILLS * RUN_MESSAGES, "there was no load"


def publish(bus: Bus, stop: threading.Event) -> None:
    """Numbered messages, thousands a second."""
    number = 0
    with bus.connect() as client:
        while not stop.wait(0.005):
            for _ in range(RUN_MESSAGES):
                client.pub(b"load/%d" % (number % 7), b"%d:%b" % (number, b"x" * (number % 200)))
                number += 1
            client.sync()


def check_sequence(rows: list[dict[str, object]]) -> int:
    """Numbers are consecutive except for what the gaps count; returns the number of gaps without a
    count."""
    unknown = 0
    last: int | None = None
    missing: int | None = 0
    for row in rows:
        if row["kind"] == "GAP":
            assert (row["key"], row["value"]) == ("", b"")
            lost = row["lost"]
            unknown += lost is None
            missing = None if missing is None or lost is None else missing + int(str(lost))
            continue
        value = row["value"]
        assert isinstance(value, bytes)
        number = int(value.partition(b":")[0])
        assert value == b"%d:%b" % (number, b"x" * (number % 200))
        assert row["key"] == f"load/{number % 7}"
        if last is not None:
            assert number > last, "a message is there twice"
            assert missing is None or number == last + 1 + missing, "messages are missing unsaid"
        last, missing = number, 0
    return unknown
