"""Flood control: messages for a client that does not read are handled as that client chose.

The expected result is derived from the specification (PROTOCOL, "A slow client" and "Notices"), for
every combination of choices: which messages arrive and in what order, which are reported lost,
whether the client is disconnected and whether publishers are held back. Where holding back is not
allowed, `block` acts as `discard`. A socket is filled deterministically: the client does not read,
as many packets are published as the kernel holds, and a `whoami` on the client's worker is answered
when all of them are accepted there.
"""

import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.support.admin import held_seconds
from tests.support.bus import Bus, running_bus
from tests.support.flood import ask, assert_held, await_answer, give_turns, may_be_sent
from tests.support.processes import clients_on_each, several_clients, stopped, worker_pids
from tests.support.six_messages import BACKLOG_MESSAGES, OPTIONS, SIX, A, Flood, in_order

SOFT = ("queue", "discard", "block", "error")
HARD = ("discard", "block", "error")
ORDER = ("queue", "stack", "random")
ALL = list(product(SOFT, HARD, ORDER))
HELD_SECONDS = 0.5


def blocks(soft: str, hard: str) -> bool:
    """Whether a client that does not read holds publishers back rather than lose anything."""
    return soft == "block" or (soft == "queue" and hard == "block")


def gives_up(soft: str, hard: str) -> bool:
    return soft == "error" or (soft == "queue" and hard == "error")


BLOCKING = [choice for choice in ALL if blocks(*choice[:2])]


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """One worker, so that it does not matter who joined before."""
    with running_bus(tmp_path_factory.mktemp("flood"), *OPTIONS, workers=1) as running:
        yield running


@pytest.fixture
def run(bus: Bus) -> Iterator[Flood]:
    with several_clients(bus, 3) as (slow, publisher, neighbour):
        yield Flood(slow, publisher, neighbour)


def check_six_messages(run: Flood, soft: str, hard: str, order: str) -> None:
    """For a full socket and a backlog of four; then the client is served as before, or is gone."""
    if blocks(soft, hard):
        check_that_the_publisher_waits(run, order, kept=0 if soft == "block" else BACKLOG_MESSAGES)
    else:
        check_that_nobody_waits(run, soft, hard, order)


def check_that_nobody_waits(run: Flood, soft: str, hard: str, order: str) -> None:
    run.publish(*SIX)
    if gives_up(soft, hard):
        check_that_it_is_told(run)
        run.publish(A)
    else:
        assert run.read() == in_order(order, BACKLOG_MESSAGES if soft == "queue" else 0)
        run.publish(A)
        assert run.slow.sync() == [A]


def check_that_it_is_told(run: Flood) -> None:
    """Why its connection ends, and nothing else; it has room for that again."""
    (notice,) = run.read_to_the_end()
    assert notice.startswith(b"CMSG !/error\0too-slow ")


def check_that_the_publisher_waits(run: Flood, order: str, kept: int) -> None:
    """The message by which the bus learns that there is no room may be kept as well."""
    run.publish_one_by_one(*SIX)
    ask(run.publisher)
    assert_held(run.publisher, run.others)
    for other in run.others:
        other.pub(b"not for the slow one", b"")
        other.whoami()
    assert_held(run.publisher, run.others)
    received = [run.slow.receive() for _ in range(len(run.filling) + len(SIX))]
    assert may_be_sent(order, SIX, run.behind_the_filling(received), before=kept)
    await_answer(run.publisher)
    run.publish(A)
    assert run.slow.sync() == [A]


@pytest.mark.parametrize(("soft", "hard", "order"), ALL)
def test_every_choice_of_policies_and_order(run: Flood, soft: str, hard: str, order: str) -> None:
    run.begin(f"blocking/soft/{soft}", f"blocking/hard/{hard}", f"order/{order}")
    check_six_messages(run, soft, hard, order)


@pytest.mark.parametrize(
    ("soft", "hard", "order"),
    [
        ("queue", "discard", "random"),
        ("queue", "error", "queue"),
        ("discard", "block", "stack"),
        ("block", "error", "queue"),
        ("queue", "block", "random"),
    ],
)
def test_defaults_of_the_bus_hold_across_workers(
    tmp_path: Path, soft: str, hard: str, order: str
) -> None:
    """They apply to clients that choose nothing; a client may choose otherwise."""
    options = ("--soft", soft, "--hard", hard, "--order", order)
    with (
        running_bus(tmp_path, *OPTIONS, *options, workers=2) as bus,
        several_clients(bus, 6) as clients,
    ):
        on_first, on_second = clients[0::2], clients[1::2]
        run = Flood(on_first[0], on_second[0], on_first[1], on_second[1])
        run.begin()
        check_six_messages(run, soft, hard, order)
        run.slow.close()
        run = Flood(on_second[2], on_first[1], on_second[0], on_first[2])
        run.begin("blocking/soft/queue", "blocking/hard/discard", "order/stack")
        check_six_messages(run, "queue", "discard", "stack")


@pytest.mark.parametrize(("before", "after"), [("discard", "error"), ("error", "discard")])
def test_a_choice_does_not_apply_to_messages_before_it(
    tmp_path: Path, before: str, after: str
) -> None:
    """Messages wait in the log for the worker of a client, which then reads the client's choice."""
    with (
        running_bus(tmp_path, *OPTIONS, workers=2) as bus,
        clients_on_each(bus, 2, each=2) as ((slow, neighbour), (publisher, other)),
    ):
        run = Flood(slow, publisher, neighbour, other)
        run.begin(f"blocking/soft/{before}")
        with stopped(worker_pids(bus)[0]):
            for packet in SIX:
                publisher.send(packet)
            publisher.whoami()
            slow.control(f"blocking/soft/{after}".encode())
        neighbour.whoami()
        neighbour.whoami()  # behind the turn in which the client is given up
        if gives_up(before, "discard"):
            check_that_it_is_told(run)
        else:
            assert run.read() == in_order("queue", 0)


# -- nobody may be held back -----------------------------------------------------------------------
@pytest.fixture(scope="module")
def bus_without_patience(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    options = (*OPTIONS, "--limit", "user_held_seconds_max=0")
    with running_bus(tmp_path_factory.mktemp("flood"), *options, workers=1) as running:
        yield running


@pytest.mark.parametrize(("soft", "hard", "order"), BLOCKING)
def test_block_acts_as_discard_where_it_is_not_allowed(
    bus_without_patience: Bus, soft: str, hard: str, order: str
) -> None:
    with several_clients(bus_without_patience, 3) as (slow, publisher, neighbour):
        run = Flood(slow, publisher, neighbour)
        run.begin(f"blocking/soft/{soft}", f"blocking/hard/{hard}", f"order/{order}")
        check_that_nobody_waits(run, soft, hard, order)


@pytest.mark.parametrize("workers", [1, 2])
def test_when_the_held_time_is_used_up_messages_are_dropped(tmp_path: Path, workers: int) -> None:
    """Clients of all choices that block hold one publisher, all together for no longer than one."""
    options = (*OPTIONS, "--limit", f"user_held_seconds_max={HELD_SECONDS}")
    with (
        running_bus(tmp_path, *options, workers=workers) as bus,
        several_clients(bus, len(BLOCKING) + 1 + workers) as (publisher, *clients),
    ):
        slow, others = clients[: len(BLOCKING)], clients[len(BLOCKING) :]
        runs = [Flood(client, publisher, *others) for client in slow]
        for run, (soft, hard, order) in zip(runs, BLOCKING, strict=True):
            for choice in (f"blocking/soft/{soft}", f"blocking/hard/{hard}", f"order/{order}"):
                run.slow.control(choice.encode())
            run.slow.control(b"!/notices/on")
            run.slow.sub(b"k")
            run.slow.whoami()
        runs[0].publish(*runs[0].filling)
        give_turns(others)
        began_at = time.monotonic()
        runs[0].publish_one_by_one(*SIX)
        publisher.whoami()
        assert time.monotonic() - began_at > 0.9 * HELD_SECONDS
        spent = held_seconds(bus)
        assert spent >= HELD_SECONDS
        give_turns(others)
        for run, (soft, _, order) in zip(runs, BLOCKING, strict=True):
            fits = (0, 1) if soft == "block" else (BACKLOG_MESSAGES,)
            assert run.read() in [in_order(order, kept) for kept in fits]
        publisher.send(A)
        publisher.whoami()
        for client in slow:
            assert client.sync() == [A]
        assert held_seconds(bus) == spent


def test_the_last_choice_holds_and_payloads_are_ignored(run: Flood) -> None:
    run.begin(
        *("blocking/soft/error", "blocking/soft/discard", "blocking/soft/queue\0discard"),
        *("blocking/hard/error\0\0", "blocking/hard/discard\0"),
        *("order/random", "order/stack\0order/queue"),
    )
    run.control("order/Queue", "order/", "order/queue/", "blocking/soft", "blocking/hard/queue")
    check_six_messages(run, "queue", "discard", "stack")


def test_the_default_is_a_queue_that_drops_the_newest(run: Flood) -> None:
    run.begin()
    check_six_messages(run, "queue", "discard", "queue")
