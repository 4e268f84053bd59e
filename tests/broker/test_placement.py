"""Where new clients are served: on one worker of an idle bus, or spread over all of them."""

import itertools
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.admin import Admin, administer
from tests.support.bus import Bus, running_bus
from tests.support.moves import move
from tests.support.processes import (
    connect_and_locate,
    descriptors,
    several_clients,
    wait_for_descriptors,
    worker_pids,
)
from tests.support.threads import wait_until


def locate_newcomer(bus: Bus, stack: ExitStack) -> int:
    """The worker of a new client, which stays for as long as the stack."""
    client, worker = connect_and_locate(bus)
    stack.enter_context(client)
    return worker


@pytest.mark.parametrize(
    ("placement", "expected"),
    [("load", [0] * 10), ("spread", [0, 1, 2, 3, 0, 1, 2, 3, 0, 1])],
)
def test_clients_of_an_idle_bus(tmp_path: Path, placement: str, expected: list[int]) -> None:
    with running_bus(tmp_path, workers=4, placement=placement) as bus, ExitStack() as stack:
        assert [locate_newcomer(bus, stack) for _ in range(10)] == expected


def test_a_new_client_goes_where_one_has_left(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=3) as bus, several_clients(bus, 5) as clients:
        # 0 and 1 have two clients, 2 has one; once 1 has lost both of its clients, it is next.
        for leaving in (clients[1], clients[4]):
            fewer = descriptors(bus)
            fewer[bus.pids()[0]] -= 1
            fewer[worker_pids(bus)[1]] -= 1
            leaving.close()
            wait_for_descriptors(bus, fewer)
        with ExitStack() as stack:
            assert [locate_newcomer(bus, stack) for _ in range(4)] == [1, 1, 2, 0]


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


def test_clients_that_exchange_messages_come_together(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, workers=2, placement="load") as bus,
        several_clients(bus, 2) as (asks, answers),
        administer(bus) as admin,
    ):
        answers.sub(b"question")
        asks.sub(b"answer")
        for client in (asks, answers):
            client.whoami()
        assert move(admin, 2, 1) == ""
        assert clients_by_worker(admin) == [1, 1]

        def are_together() -> bool:
            for number in range(100):
                asks.pub(b"question", b"%d" % number)
                assert answers.receive() == b"MSG question\0%d" % number
                answers.pub(b"answer", b"%d" % number)
                assert asks.receive() == b"MSG answer\0%d" % number
            return 2 in clients_by_worker(admin)

        wait_until(are_together, "they share a worker", timeout_s=50)


def clients_by_worker(admin: Admin) -> list[int]:
    return [worker["clients"] for worker in admin.ask("workers")["workers"]]
