"""Clients that came to one worker of an idle bus are spread when all of them publish."""

import itertools
import os
from pathlib import Path

import pytest

from tests.support.admin import Admin, administer
from tests.support.bus import running_bus
from tests.support.processes import (
    several_clients,
)
from tests.support.threads import wait_until


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one worker is enough")
def test_clients_that_come_idle_spread_when_they_all_publish(tmp_path: Path) -> None:
    """As at boot. What pairs of clients exchange arrives in order all the time, and most pairs stay
    together."""
    busy_soon = ("--limit", "worker_busy_percent_max=1")
    with (
        running_bus(tmp_path, *busy_soon, workers=2, placement="load") as bus,
        several_clients(bus, 200) as clients,
        administer(bus) as admin,
    ):
        assert clients_by_worker(admin) == [200, 0]
        pairs = list(zip(clients[::2], clients[1::2], strict=True))
        for number, (_, subscriber) in enumerate(pairs):
            subscriber.sub(b"pair/%d" % number)
            subscriber.whoami()
        rounds = itertools.count()

        def has_spread() -> bool:
            payload = b"%d" % next(rounds)
            for number, (publisher, subscriber) in enumerate(pairs):
                publisher.pub(b"pair/%d" % number, payload)
                assert subscriber.receive() == b"MSG pair/%d\0%b" % (number, payload)
            return min(clients_by_worker(admin)) >= 20

        wait_until(has_spread, "all workers serve", timeout_s=40)
        workers = [one["worker"] for one in admin.pages("clients", "clients", limit=300)[0]]
        together = sum(own == other for own, other in zip(*[iter(workers)] * 2, strict=True))
        assert together >= 80


def clients_by_worker(admin: Admin) -> list[int]:
    return [worker["clients"] for worker in admin.ask("workers")["workers"]]
