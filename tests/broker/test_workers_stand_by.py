"""Workers stand by: a worker without clients has not begun to serve, and nobody misses it.

One that serves has an epoll set, which shows from outside.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.admin import administer
from tests.support.bus import Bus, running_bus
from tests.support.ending_process import unless_it_ends
from tests.support.processes import worker_pids

WORKERS = 3


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with running_bus(tmp_path, "--placement", "spread", workers=WORKERS) as running:
        yield running


def serving(bus: Bus) -> int:
    """How many workers have begun to serve."""
    return sum(map(has_epoll_set, worker_pids(bus).values()))


def has_epoll_set(pid: int) -> bool:
    """False for a process that has ended, too."""
    with unless_it_ends(pid):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since it was listed
                if "eventpoll" in os.readlink(link):
                    return True
    return False


def test_a_worker_begins_with_its_first_client(bus: Bus) -> None:
    assert len(worker_pids(bus)) == WORKERS
    assert serving(bus) == 0
    with bus.connect() as first:
        first.whoami()
        assert serving(bus) == 1
        with bus.connect() as second:
            second.whoami()
            assert serving(bus) == 2


def test_what_all_workers_answer_begins_them_all(bus: Bus) -> None:
    with administer(bus) as admin:
        assert len(admin.ask("stats")["workers"]) == WORKERS
        assert serving(bus) == 0, "the statistics are in shared memory"
        assert admin.ask("explain", key="a")["unanswered"] == []
        assert serving(bus) == WORKERS
