"""A worker that dies is replaced at once, and its clients stay connected.

Its successor has their subscriptions and settings. What was only in the dead worker's memory is
lost, and clients with notices on are told. Messages between the other clients are neither lost nor
doubled nor reordered (docs/protocol.md, "Promises", 5).
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.broker.death_pauses import measure_pause
from tests.support.admin import administer
from tests.support.bus import Bus, running_bus, wait_until_gone
from tests.support.flood import limit_options, message, send_until_held
from tests.support.processes import (
    clients_on_each,
    descriptors,
    descriptors_at_rest,
    is_replaced,
    several_clients,
    worker_pids,
)
from tests.support.threads import wait_until
from tests.support.traffic import Stream, flowing

GONE_SECONDS_MAX = 10.0
LOST = b"CMSG !/lost\0"
DELAYS_SECONDS = (0.1, 0.2, 0.4, 0.8)
"""Of successors that die within a second."""


def kill_worker(bus: Bus, worker: int, signum: signal.Signals = signal.SIGKILL) -> int:
    """Returns the id of the process, which is gone."""
    pid = worker_pids(bus)[worker]
    os.kill(pid, signum)
    assert wait_until_gone(pid, GONE_SECONDS_MAX)
    return pid


def let_turns_end(bus: Bus) -> None:
    """Wait until the workers have noted as done what they have answered: they answer the front
    between turns."""
    with administer(bus) as admin:
        admin.ask("clients")


@contextmanager
def dying(bus: Bus, worker: int) -> Iterator[None]:
    """The worker does nothing during the block, and is dead behind it."""
    let_turns_end(bus)
    os.kill(worker_pids(bus)[worker], signal.SIGSTOP)
    yield
    kill_worker(bus, worker)


def replace_worker(bus: Bus, worker: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Kill a worker, and wait until a successor runs."""
    let_turns_end(bus)
    died = kill_worker(bus, worker, signum)
    wait_until(partial(is_replaced, bus, worker, died), f"worker {worker} lives again")


def worker_of(bus: Bus, number: int) -> int:
    """The worker that serves a client, as the bus says."""
    with administer(bus) as admin:
        (found,) = [one for one in admin.ask("clients")["clients"] if one["client"] == number]
        return int(found["worker"])


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_nobody_is_disconnected(tmp_path: Path, signum: signal.Signals) -> None:
    """Only the front obeys SIGTERM: a worker that gets it by mistake continues to serve."""
    with running_bus(tmp_path, workers=3) as bus, clients_on_each(bus, 3, 2) as places:
        if signum == signal.SIGTERM:
            os.kill(worker_pids(bus)[1], signum)
        else:
            kill_worker(bus, 1, signum)
        for clients in places:
            for client in clients:
                client.whoami()
        assert worker_of(bus, 2) == 1


def test_subscriptions_stay(tmp_path: Path) -> None:
    """Also those that are written in another way than they are journalled."""
    with running_bus(tmp_path, workers=2) as bus, clients_on_each(bus, 2) as ((stays,), (other,)):
        for pattern in (b"a/*", b"a/*", b"b/**", b"!/cred////secret", b"gone"):
            stays.sub(pattern)
        stays.unsub(b"gone")
        own = stays.whoami()
        for _ in range(2):
            replace_worker(bus, 0)
            stays.whoami()
            other.pub(b"a/x", b"1")
            other.pub(b"b/x", b"2")
            other.pub(b"%b/secret" % own, b"3")
            other.pub(b"gone", b"4")
            other.whoami()
            expected = [b"MSG a/x\x001", b"MSG b/x\x002", b"MSG %b/secret\x003" % own]
            assert stays.sync() == expected
        for pattern, left in ((b"a/*", 2), (b"b/**", 1), (b"a/*", 0)):
            stays.unsub(pattern)
            stays.whoami()
            other.pub(b"a/x", b"")
            other.pub(b"b/x", b"")
            other.whoami()
            assert len(stays.sync()) == left


def test_messages_of_other_workers_arrive_behind_the_death(tmp_path: Path) -> None:
    """They are in the log, before the worker has a successor."""
    with running_bus(tmp_path, workers=2) as bus, clients_on_each(bus, 2) as ((own,), (other,)):
        own.control(b"!/notices/on")
        own.sub(b"k")
        own.whoami()
        with dying(bus, 0):
            other.pub(b"k", b"before the death")
            other.whoami()
        other.pub(b"k", b"behind the death")
        other.whoami()
        assert own.sync() == [b"MSG k\0before the death", b"MSG k\0behind the death"]


def test_what_was_sent_before_can_be_read_and_what_was_unread_is_processed(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=2) as bus, clients_on_each(bus, 2, 2) as (own, _):
        client, neighbour = own
        client.control(b"!/notices/on")
        client.sub(b"k")
        client.whoami()
        for number in range(20):
            neighbour.pub(b"k", b"%d" % number)
        neighbour.whoami()
        with dying(bus, 0):
            for number in range(100):
                neighbour.pub(b"k", b"unread %d" % number)
        neighbour.whoami()
        assert client.sync() == [
            *(b"MSG k\0%d" % number for number in range(20)),
            *(b"MSG k\0unread %d" % number for number in range(100)),
        ]


def test_a_backlog_is_lost_and_its_number_is_said(tmp_path: Path) -> None:
    """What the kernel has for the client is not lost."""
    with (
        running_bus(tmp_path, *limit_options()) as bus,
        clients_on_each(bus, 2) as ((slow,), (publisher,)),
    ):
        slow.control(b"!/notices/on")
        slow.sub(b"k")
        slow.whoami()
        for number in range(500):
            publisher.pub(b"k", b"%d %b" % (number, bytes(1_000)))
        publisher.whoami()
        replace_worker(bus, 0)
        *received, last = slow.sync()
        assert last == LOST + b"%d" % (500 - len(received))
        assert 0 < len(received) < 500
        numbers = [int(packet.partition(b"\0")[2].split()[0]) for packet in received]
        assert numbers == list(range(len(received)))
        publisher.pub(b"k", b"later")
        assert slow.receive() == b"MSG k\0later"


@pytest.mark.parametrize("request_key", [b"!/cred/whoami", b"!/me"])
def test_a_reply_that_waits_behind_a_backlog_comes(tmp_path: Path, request_key: bytes) -> None:
    """A second successor sends it, too, and the number of losses is known."""
    with (
        running_bus(tmp_path, *limit_options()) as bus,
        clients_on_each(bus, 2) as ((slow,), (publisher,)),
    ):
        slow.control(b"!/notices/on")
        slow.sub(b"k")
        slow.whoami()
        for number in range(500):
            publisher.pub(b"k", b"%d %b" % (number, bytes(1_000)))
        publisher.whoami()
        slow.sub(b"later")
        slow.control(request_key)
        for _ in range(2):
            replace_worker(bus, 0)
        packets = [slow.receive()]
        while not packets[-1].startswith(b"CMSG " + request_key):
            packets.append(slow.receive())
        assert packets[-2] == LOST + b"%d" % (500 - len(packets[:-2]))
        publisher.pub(b"later", b"")
        assert slow.receive() == b"MSG later\0"


def test_a_client_that_leaves_meanwhile_is_forgotten(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=2) as bus, clients_on_each(bus, 2, 2) as (own, (other, _)):
        for client in own:
            client.sub(b"k")
            client.whoami()
        with dying(bus, 0):
            own[0].close()
        own[1].whoami()
        with administer(bus) as admin:
            wait_until(lambda: len(admin.ask("clients")["clients"]) == 3, "it is forgotten")
            assert [one["client"] for one in admin.ask("subs")["subscriptions"]] == [3]
            assert admin.ask("users")["users"][0]["subscriptions"] == 1
        other.pub(b"k", b"1")
        assert own[1].receive() == b"MSG k\x001"


def test_a_client_that_was_never_served_is_served(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=1) as bus, several_clients(bus, 1):
        with dying(bus, 0):
            newcomer = bus.connect()
            newcomer.sub(b"k")
            wait_until(partial(has_clients, bus, 2), "it was admitted")
        with newcomer:
            newcomer.whoami()
            newcomer.pub(b"k", b"1")
            assert newcomer.receive() == b"MSG k\x001"


def has_clients(bus: Bus, count: int) -> bool:
    with administer(bus) as admin:
        return bool(admin.ask("stats")["clients"] == count)


def test_publishers_are_held_back_for_an_inherited_client(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, *limit_options()) as bus,
        clients_on_each(bus, 2, 2) as ((slow, same), (publisher, other)),
    ):
        slow.control(b"blocking/soft/block")
        slow.sub(b"k")
        slow.whoami()
        packets = [message(b"%d" % number, 1_000) for number in range(1_000)]
        for _ in range(2):
            replace_worker(bus, 0)
            slow.whoami()
            sent = send_until_held(publisher, packets, (same, other))
            assert [slow.receive() for _ in range(sent)] == packets[:sent]


def test_twenty_deaths_under_load(tmp_path: Path) -> None:
    """The streams run through the workers that live, and everything goes to those that die too."""
    workers, deaths = 7, 20
    with (
        running_bus(tmp_path, workers=workers) as bus,
        several_clients(bus, 3 * workers) as clients,
    ):
        first, second = clients[0::workers], clients[1::workers]
        streams = [
            Stream(first[0], first[1], b"same"),
            Stream(first[2], second[0], b"other"),
            Stream(second[1], second[2], b"other way"),
        ]
        own = {worker: clients[worker::workers] for worker in range(2, workers)}
        with flowing(*streams):
            for number in range(deaths):
                victim = 2 + number % (workers - 2)
                for client in own[victim]:
                    client.sub(b"%d" % number)
                    client.sync()
                replace_worker(bus, victim, (signal.SIGKILL, signal.SIGSEGV)[number % 2])
                with bus.connect() as newcomer:
                    newcomer.whoami()
                for client in own[victim]:
                    client.sync()
                    first[0].pub(b"%d" % number, b"")
                    first[0].sync()
                    assert b"MSG %d\0" % number in client.sync()
        assert all(stream.received > 100 for stream in streams)


def test_the_pause_at_a_death_can_be_measured(tmp_path: Path) -> None:
    """The successor replies to all, and has all subscriptions; the measurement checks both."""
    pause = measure_pause(tmp_path, clients=20, subscriptions=3)
    assert 0 < pause.first_ms <= pause.median_ms <= pause.last_ms


def test_a_stopped_worker_can_be_killed(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=2) as bus, clients_on_each(bus, 2) as ((own,), (other,)):
        own.sub(b"k")
        own.whoami()
        with dying(bus, 0):
            own.pub(b"k", b"unread")
        assert own.receive() == b"MSG k\0unread"
        other.pub(b"k", b"payload")
        assert own.receive() == b"MSG k\0payload"


def test_a_worker_that_keeps_dying_is_replaced_less_often(tmp_path: Path) -> None:
    """Its clients wait, and are served in the end. Meanwhile nobody knows what they lose."""
    with running_bus(tmp_path, workers=2) as bus, clients_on_each(bus, 2) as ((own,), (other,)):
        own.control(b"!/notices/on")
        own.sub(b"k")
        own.whoami()
        began_at = time.monotonic()
        for _ in range(4):
            replace_worker(bus, 0)
        assert time.monotonic() - began_at > sum(DELAYS_SECONDS)
        assert LOST + b"?" in own.sync()
        other.pub(b"k", b"payload")
        assert own.receive() == b"MSG k\0payload"


def test_no_descriptor_leaks(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=2) as bus:
        expected = sorted(descriptors_at_rest(bus).values())
        for _ in range(4):
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
