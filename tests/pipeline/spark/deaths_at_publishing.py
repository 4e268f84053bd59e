"""A driver dies before each of its writes: `python -m tests.pipeline.spark.deaths_at_publishing`.

In each run, tasks stage the rows of a batch, and the driver publishes them; a preloaded library
kills it instead of one of the calls that change files. Then Spark repeats the batch, and the tasks
have the rows in another order. Afterwards the bus must have had every row once, except for those
that it had when the driver died, and that the ledger did not count yet.
"""

import sys
import tempfile
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa

import sbus
from sbus.pipeline.spark.publication import ROWS, SYNC_MESSAGES, Publication
from sbus.pipeline.spark.sink import StreamWriter
from sbus.pipeline.spark.staging import Ledger, Staging
from tests.support.bus import running_bus
from tests.support.deaths import dies_at, in_child, is_preloaded, preloaded

MODULE = "tests.pipeline.spark.deaths_at_publishing"
BATCH = 3
TASK_ROWS = SYNC_MESSAGES + 200
ROWS_OF = [range(TASK_ROWS), range(TASK_ROWS, 2 * TASK_ROWS)]
Subscriber = sbus.blocking.Connection[sbus.Message]


def publish(address: str, checkpoint: Path, order: int) -> None:
    """What Spark has tasks and driver do for a batch; `order` is 1 or -1."""
    warnings.simplefilter("ignore")
    writer = StreamWriter(Publication(address, None), Staging(str(checkpoint)))
    tasks = [
        writer.write(iter([pa.record_batch([[b"k"] * TASK_ROWS, values], schema=ROWS)]))
        for values in ([b"%d" % number for number in rows] for rows in ROWS_OF[::order])
    ]
    writer.commit([*tasks], BATCH)


def received(subscriber: Subscriber) -> list[int]:
    """All that was published since the last call."""
    subscriber.sync()
    return [int(subscriber.receive().payload) for _ in range(subscriber.statistics().messages)]


def run_once(address: str, subscriber: Subscriber, checkpoint: Path, call: int) -> bool:
    """Returns whether the driver died."""
    assert in_child(partial(publish_nothing, checkpoint)) == 0
    has_died = dies_at(call, partial(publish, address, checkpoint, 1))
    first = received(subscriber)
    ledger = Staging(str(checkpoint)).load()
    assert ledger is not None
    is_known = ledger.batch == BATCH
    unsure = len(first) - ledger.published if is_known and ledger.files else 0
    assert 0 <= unsure <= SYNC_MESSAGES, f"{unsure} rows were not counted"
    assert in_child(partial(publish, address, checkpoint, -1)) == 0
    assert in_child(partial(publish, address, checkpoint, 1)) == 0, "it is repeated once more"
    both = [*first, *received(subscriber)]
    numbers = list(range(2 * TASK_ROWS))
    if is_known:
        assert both == numbers[: len(first)] + numbers[len(first) - unsure :]
    assert set(Counter(both)) == set(numbers)
    assert len(both) == len(numbers) + unsure, "rows were published twice that are known"
    assert [path.name for path in checkpoint.rglob("*") if path.is_file()] == ["ledger.json"]
    return has_died


def publish_nothing(checkpoint: Path) -> None:
    """The batch before has left its ledger."""
    staging = Staging(str(checkpoint))
    with staging.locked():
        staging.save(Ledger(BATCH - 1, []))


def main() -> int:
    if not is_preloaded():
        return preloaded(MODULE, sys.argv[1:])
    first, step = map(int, sys.argv[1:] or ("1", "1"))
    deaths = 0
    with (
        tempfile.TemporaryDirectory() as directory,
        running_bus(Path(directory)) as bus,
        sbus.blocking.connect(bus.address) as subscriber,
    ):
        subscriber.subscribe("")
        subscriber.sync()
        call = first
        while run_once(bus.address, subscriber, Path(directory, f"{call}"), call):
            deaths, call = deaths + 1, call + step
    sys.stdout.write(f"{deaths} deaths, each before another write: every row is known\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
