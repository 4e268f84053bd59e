"""Statistics of the bus, compared to the message and the byte with what the test's clients did."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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

NOTHING_DISCARDED = {"soft": 0, "hard": 0, "quota": 0, "unheld": 0, "fan-out": 0, "age": 0}


def assert_balanced(traffic: dict[str, Any]) -> None:
    """The ledger, in messages and in bytes."""
    assert traffic["accepted"] == sum(
        (
            *(traffic[it] for it in ("delivered", "replaced", "undelivered", "backlog")),
            *traffic["discarded"].values(),
        )
    )
    assert traffic["accepted_bytes"] == sum(
        traffic[f"{what}_bytes"]
        for what in ("delivered", "discarded", "replaced", "undelivered", "backlog")
    )


@pytest.mark.parametrize(
    ("choice", "limits", "reason"),
    [
        (b"blocking/soft/queue", {"backlog_messages_max": 3}, "hard"),
        (b"blocking/soft/queue", {"user_backlog_bytes_max": 0}, "quota"),
    ],
)
def test_discarded_messages_are_counted_by_reason(
    tmp_path: Path, choice: bytes, limits: dict[str, float], reason: str
) -> None:
    filler, more = filling(), [message(b"%d" % number, 500) for number in range(10)]
    kept = 3 if reason == "hard" else 0
    with (
        running_bus(tmp_path, *limit_options(**limits)) as bus,
        several_clients(bus, 2) as (slow, publisher),
        administer(bus) as admin,
    ):
        slow.control(choice)
        slow.sub(b"k")
        slow.sync()
        for packet in [*filler, *more]:
            publisher.send(packet)
        publisher.sync()
        sent = len(filler) + len(more)
        traffic = wait_for_traffic(admin, lambda now: now["accepted"] == sent)
        assert traffic["discarded"] == {**NOTHING_DISCARDED, reason: len(more) - kept}
        assert traffic["discarded_bytes"] == 500 * (len(more) - kept)
        assert (traffic["backlog"], traffic["backlog_bytes"]) == (kept, 500 * kept)
        assert traffic["delivered"] == len(filler)
        assert_balanced(traffic)
        user = admin.ask("users", after=os.getuid() - 1)["users"][0]
        assert user["discarded"] == len(more) - kept
        activity = admin.ask("clients")["clients"][0]["activity"]
        assert activity["discarded"] == len(more) - kept
        assert activity["delivered_bytes"] == sum(map(len, filler))
        # A client that leaves takes its backlog along.
        slow.close()
        traffic = wait_for_traffic(admin, lambda now: now["undelivered"] == kept)
        assert traffic["backlog"] == traffic["backlog_bytes"] == 0
        assert_balanced(traffic)


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
