"""More connections than descriptors, and many short ones: connected clients are not disturbed."""

import os
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.support.bus import Bus, running_bus, sbusd_with_few_descriptors
from tests.support.processes import (
    is_replaced,
    worker_pids,
)
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until

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
