"""Statistics of the bus, compared to the message and the byte with what the test's clients did."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.admin import administer, wait_for_traffic
from tests.support.bus import Bus, running_bus
from tests.support.flood import filling, limit_options, message
from tests.support.processes import (
    clients_on_each,
    is_replaced,
    several_clients,
    worker_pids,
)
from tests.support.threads import wait_until


def test_what_clients_do_not_read_is_counted(tmp_path: Path) -> None:
    """Other reasons to drop messages: see the unit tests of the outbox."""
    with (
        running_bus(tmp_path, *limit_options(user_held_seconds_max=0)) as bus,
        several_clients(bus, 3) as (holding, queueing, publisher),
        administer(bus) as admin,
    ):
        holding.control(b"blocking/soft/block")
        for client in (holding, queueing):
            client.sub(b"k")
            client.sync()
        for packet in [*filling(), message(b"more", 500)]:
            publisher.send(packet)
        traffic = wait_for_traffic(
            admin, lambda now: now["discarded"]["unheld"] == now["backlog"] == 1
        )
        assert (traffic["discarded_bytes"], traffic["backlog_bytes"]) == (500, 500)
        queueing.close()
        traffic = wait_for_traffic(admin, lambda now: now["undelivered"] == 1)
        assert (traffic["undelivered_bytes"], traffic["backlog_bytes"]) == (500, 0)


def test_counters_survive_the_death_of_a_worker(tmp_path: Path) -> None:
    with running_bus(tmp_path) as bus, ExitStack() as stack:
        (doomed, (other,)) = stack.enter_context(clients_on_each(bus, 2))
        admin = stack.enter_context(administer(bus))
        for client in (*doomed, other):
            client.sub(b"k")
            client.sync()
            client.pub(b"k", b"12345")
            client.sync()
        before = wait_for_traffic(admin, lambda now: now["accepted"] == 3)
        assert before["messages_in"] == 2
        pid = worker_pids(bus)[0]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_replaced(bus, 0, pid), "a new worker")
        # The new worker has taken over the client of the one that died.
        after = wait_for_traffic(admin, lambda now: now["subscriptions"] == 2)
        for name in ("messages_in", "accepted", "delivered", "delivered_bytes"):
            assert after[name] == before[name]
        other.pub(b"k", b"12345")
        other.sync()
        wait_for_traffic(admin, lambda now: now["messages_in"] == 3)
        workers = admin.ask("workers")["workers"]
        assert [worker["deaths"] for worker in workers] == [1, 0]


def test_rates_and_fill_levels_are_reported(bus: Bus) -> None:
    with several_clients(bus, 2) as (one, two), administer(bus) as admin:
        one.sub(b"k")
        one.sync()
        for _ in range(500):
            two.pub(b"k", b"")
        two.sync()
        wait_for_traffic(admin, lambda now: now["messages_in"] == 500)
        stats = admin.ask("stats")
        rates = stats["rates"]
        in_the_window = rates["messages_in_per_second"] * rates["window_seconds"]
        assert in_the_window == pytest.approx(500)
        assert stats["log"]["size_bytes"] == 8 * 1024 * 1024
        assert 0 < stats["table"]["used_bytes"] < stats["table"]["size_bytes"]
