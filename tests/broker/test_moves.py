"""A client that is moved to another worker notices nothing, and neither does anybody else."""

import os
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.support.admin import Admin, administer, own_user
from tests.support.bus import Bus, running_bus
from tests.support.flood import limit_options
from tests.support.moves import clients_moving, move
from tests.support.processes import (
    clients_on_each,
    descriptors_at_rest,
    is_replaced,
    several_clients,
    worker_pids,
)
from tests.support.quotas import share
from tests.support.raw_client import RawClient
from tests.support.threads import Task, wait_until
from tests.support.traffic import Stream, flowing


def move_when_at_rest(admin: Admin, client: int, worker: int) -> None:
    """Move a client that has just read everything."""
    wait_until(lambda: move(admin, client, worker) == "", "it was moved")


def test_a_client_that_does_not_read_is_not_moved(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, *limit_options()) as bus,
        administer(bus) as admin,
        clients_on_each(bus, 2) as ((slow,), (publisher,)),
    ):
        slow.sub(b"k")
        slow.whoami()
        messages = [b"MSG k\0%d %b" % (number, bytes(1_000)) for number in range(300)]
        for message in messages:
            publisher.send(message)
        publisher.whoami()
        assert "wait" in move(admin, 1, 1)
        assert slow.sync() == messages
        move_when_at_rest(admin, 1, 1)


def test_a_move_takes_no_more_of_a_quota(tmp_path: Path) -> None:
    """A client moves with all but one of the subscriptions that it may have, then with all of them,
    and may have no more afterwards."""
    quota = 11
    with (
        running_bus(tmp_path, "--limit", f"user_subscriptions_max={quota}") as bus,
        administer(bus) as admin,
        clients_on_each(bus, 2) as ((moves,), _),
    ):
        moves.control(b"!/notices/on")
        count = share(quota, 0, 0)
        for number in range(count - 1):
            moves.sub(b"%d" % number)
        for refused in (0, 1):
            assert moves.sync() == []
            for worker in (1, 0, 1):
                move_when_at_rest(admin, 1, worker)
                user = own_user(admin)
                assert user["subscriptions"] == count - 1 + refused
            moves.sub(b"one more")
            assert len(moves.sync()) == refused
        moves.close()
        wait_until(lambda: own_user(admin)["subscriptions"] == 0, "nothing is counted")


def test_clients_leave_while_they_move(tmp_path: Path) -> None:
    """Nothing is left of them: no descriptor, and no use of a quota."""
    with running_bus(tmp_path, workers=3) as bus, administer(bus) as admin:
        expected = sorted(descriptors_at_rest(bus).values())
        with clients_moving(bus) as outcomes:
            while outcomes[""] < 50:
                with several_clients(bus, 4) as clients:
                    for client in clients:
                        client.sub(b"k")
                    clients[0].pub(b"k", b"unread")
        wait_until(
            lambda: sorted(descriptors_at_rest(bus).values()) == expected, "as many descriptors"
        )
        user = own_user(admin)
        assert (user["connections"], user["subscriptions"]) == (0, 0)


def test_workers_die_while_clients_move(tmp_path: Path) -> None:
    """A death costs connections of the clients of that worker, or of those on their way, and no
    other; what is left is served as before."""
    with (
        running_bus(tmp_path, workers=4) as bus,
        several_clients(bus, 8) as clients,
        administer(bus) as admin,
    ):
        # The streams of two clients, which do not move, run through workers that do not die.
        stream = Stream(clients[0], clients[1], b"same")
        with flowing(stream), ExitStack() as stack:
            for number in range(4):
                victim = 2 + number % 2
                movers = [stack.enter_context(bus.connect()) for _ in range(6)]
                for client in movers:
                    client.sub(b"other")
                    client.whoami()
                moving = [one["client"] for one in admin.ask("clients")["clients"]][-6:]
                died = worker_pids(bus)[victim]
                tasks = [Task(partial(move_to_and_fro, bus, client)) for client in moving]
                os.kill(died, signal.SIGKILL)
                for task in tasks:
                    task.join()
                wait_until(partial(is_replaced, bus, victim, died), f"worker {victim} lives again")
                left = {one["client"] for one in admin.ask("clients")["clients"]}
                for client, own in zip(movers, moving, strict=True):
                    if own in left:
                        client.whoami()
                    else:
                        client.receive_until_closed()
                check_deliveries(bus, movers, [own in left for own in moving])


def move_to_and_fro(bus: Bus, client: int) -> None:
    with administer(bus) as admin:
        for number in range(10):
            move(admin, client, 2 + number % 2)


def check_deliveries(bus: Bus, clients: list[RawClient], connected: list[bool]) -> None:
    """Every client that is connected receives a message once."""
    with bus.connect() as publisher:
        publisher.pub(b"other", b"after")
        publisher.whoami()
    for client, is_connected in zip(clients, connected, strict=True):
        if is_connected:
            assert client.sync() == [b"MSG other\0after"]
