"""Jobs for a group of workers, on a bus that keeps only the newest message of each key."""

from pathlib import Path

import sbus
from tests.support.bus import running_bus

ROUNDS = 400
TIMEOUT_S = 60.0


def payload(number: int) -> bytes:
    return b"%06d" % number + bytes(200)


def test_jobs_are_not_replaced_on_a_bus_whose_clients_begin_with_this_order(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, "--order", "latest") as bus,
        sbus.blocking.connect(bus.address, sender=True) as member,
        member.worker_group("group", "job", timeout_seconds=TIMEOUT_S) as jobs,
        sbus.blocking.connect(bus.address) as speaker,
    ):
        for number in range(ROUNDS):
            speaker.publish("job", payload(number))
        speaker.sync(timeout_seconds=TIMEOUT_S)
        for number in range(ROUNDS):
            job = jobs.receive(timeout_seconds=TIMEOUT_S)
            assert job.payload == payload(number)
            job.done()
