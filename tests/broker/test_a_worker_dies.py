"""A worker that dies is replaced at once, and its clients stay connected.

What clients keep: `tests/protocol/20-survival.t` and `21-survival-of-backlogs.t`.
"""

import os
import signal
from functools import partial
from pathlib import Path

from tests.broker.death_pauses import measure_pause
from tests.support.bus import Bus, running_bus
from tests.support.processes import (
    descriptors,
    descriptors_at_rest,
    is_replaced,
    several_clients,
    worker_pids,
)
from tests.support.threads import wait_until


def replace_worker(bus: Bus, worker: int) -> None:
    """Kill a worker, and wait until a successor runs."""
    died = worker_pids(bus)[worker]
    os.kill(died, signal.SIGKILL)
    wait_until(partial(is_replaced, bus, worker, died), f"worker {worker} lives again")


def test_the_pause_at_a_death_can_be_measured(tmp_path: Path) -> None:
    """The successor replies to all, and has all subscriptions; the measurement checks both."""
    pause = measure_pause(tmp_path, clients=20, subscriptions=3)
    assert 0 < pause.first_ms <= pause.median_ms <= pause.last_ms


def test_no_descriptor_leaks(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=2) as bus:
        expected = sorted(descriptors_at_rest(bus).values())
        for _ in range(3):
            with several_clients(bus, 10) as clients:
                replace_worker(bus, 0)
                for client in clients:
                    client.whoami()
        wait_until(
            lambda: (
                len(descriptors(bus)) == len(expected)
                and sum(descriptors(bus).values()) <= sum(expected) + EVENT_LOOPS
            ),
            f"descriptors {expected} again",
        )


EVENT_LOOPS = 20
"""Descriptors that workers have once they serve, and not while they stand by."""
