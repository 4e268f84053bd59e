"""More connections than descriptors, and many short ones: connected clients are not disturbed."""

import os
import resource
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.support.bus import Bus, running_bus, sbusd_with_few_descriptors
from tests.support.processes import (
    clients_on_each,
    descriptors_at_rest,
    is_replaced,
    several_clients,
    wait_for_descriptors,
    worker_pids,
)
from tests.support.raw_client import RawClient
from tests.support.threads import Task, wait_until

TOO_MANY = "too-many-connections"


def is_served(client: RawClient) -> bool:
    """Whether it is; so many are refused here that the bus may cease to tell them why."""
    return client.is_served(TOO_MANY, may_be_silent=True)


def connect_until_full(bus: Bus, stack: ExitStack) -> list[RawClient]:
    """Clients that are served; the next ones are refused."""
    served: list[RawClient] = []
    while is_served(client := stack.enter_context(bus.connect())):
        served.append(client)
    for _ in range(60):
        with bus.connect() as client:
            assert not is_served(client)
    return served


def connect_again(bus: Bus) -> RawClient:
    """A client that is served, as soon as others have left."""
    deadline = time.monotonic() + 10.0
    while not is_served(client := bus.connect()):
        client.close()
        assert time.monotonic() < deadline, "there is no room"
    return client


def assert_all_hear_each_other(clients: list[RawClient]) -> None:
    for number, client in enumerate(clients):
        client.sub(b"k")
        client.sync()
        clients[0].pub(b"k", b"%d" % number)
        for listener in clients[: number + 1]:
            assert listener.receive() == b"MSG k\0%d" % number
    for client in clients:
        client.unsub(b"k")
        client.sync()


def test_more_clients_than_descriptors_disturb_no_client(tmp_path: Path) -> None:
    with running_bus(tmp_path, command=sbusd_with_few_descriptors(64)) as bus, ExitStack() as stack:
        served = connect_until_full(bus, stack)
        assert 28 <= len(served) < 64
        assert_all_hear_each_other(served)
        for _ in range(2):
            for client in served[:10]:
                client.close()
            del served[:10]
            served += [stack.enter_context(connect_again(bus)) for _ in range(10)]
            with bus.connect() as client:
                assert not is_served(client)
            assert_all_hear_each_other(served)
        assert len(bus.stderr_text().splitlines()) <= 5


def test_a_worker_can_be_replaced_while_descriptors_are_short(tmp_path: Path) -> None:
    """New clients take every descriptor that its clients leave behind."""
    with running_bus(tmp_path, command=sbusd_with_few_descriptors(64)) as bus, ExitStack() as stack:
        served = connect_until_full(bus, stack)
        assert_all_hear_each_other(served)
        for _ in range(3):
            victim = worker_pids(bus)[0]
            os.kill(victim, signal.SIGKILL)
            wait_until(partial(is_replaced, bus, 0, victim), "worker 0 lives again")
            connect_until_full(bus, stack)
        for client in served[1::2]:
            client.whoami()


def test_two_thousand_short_connections_leave_nothing(tmp_path: Path) -> None:
    """They may come faster than they are found to have gone."""
    options = ("--limit", "user_connections_max=4000")
    with running_bus(tmp_path, *options) as bus, clients_on_each(bus, 2) as ((same,), (other,)):
        before = descriptors_at_rest(bus)
        for number in range(2_000):
            with bus.connect() as client:
                if number % 2:
                    client.sub(b"k")
                if number % 3:
                    client.pub(b"k", b"")
        wait_for_descriptors(bus, before)
        same.whoami()
        other.whoami()
        assert bus.stderr_text() == ""


def test_many_connections_at_the_same_time(tmp_path: Path) -> None:
    """Five hundred clients at once, connecting from several sides."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    each = min(125, (soft - 100) // 4)
    with running_bus(tmp_path) as bus, clients_on_each(bus, 2) as ((same,), (other,)):
        before = descriptors_at_rest(bus)

        def visit() -> None:
            with several_clients(bus, each) as clients:
                for client in clients:
                    client.sub(b"k")
                    client.pub(b"k", b"%d" % id(client))
                    own = b"MSG k\0%d" % id(client)
                    while client.receive() != own:
                        pass

        for task in [Task(visit) for _ in range(4)]:
            task.join()
        wait_for_descriptors(bus, before)
        same.whoami()
        other.whoami()
