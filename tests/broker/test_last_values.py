"""Last values over a real bus."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import anyio
import pytest

import sbus
from tests.broker.last_values_joiners import run
from tests.support.bus import Bus, running_bus
from tests.support.event_loops import on_both_event_loops
from tests.support.users import (
    STRANGER,
    directory_for_everybody,
    effective_user,
    needs_root,
)

TIMEOUT_S = 60.0


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


@on_both_event_loops
async def test_a_joiner_gets_the_newest_of_each_key_and_all_that_follows(bus: Bus) -> None:
    """The full measure: python -m tests.broker.last_values_joiners."""
    with anyio.fail_after(TIMEOUT_S):
        await run(bus, joiners=20, messages=1_000)


@contextmanager
def served(bus: Bus, keys_max: int = 2, uid: int | None = None) -> Iterator[None]:
    """A blocking client serves `a/` in another thread, perhaps one of this user."""
    with effective_user(os.geteuid() if uid is None else uid):
        server = sbus.blocking.connect(bus.address)
    with ThreadPoolExecutor(1) as executor, suppress(sbus.Disconnected):
        serving = executor.submit(server.serve_last_values, "a/", keys_max=keys_max)
        try:
            yield
        finally:
            server.close()
        serving.result(TIMEOUT_S)


def is_served(client: sbus.blocking.Connection[sbus.Message], uid: int | None = None) -> bool:
    try:
        with client.last_values("a/1", uid=uid, timeout_seconds=1):
            return True
    except TimeoutError:
        return False


@needs_root
def test_what_a_service_of_another_user_says_counts_where_that_user_is_named() -> None:
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-o") as bus,
        sbus.blocking.connect(bus.address) as client,
        served(bus, uid=STRANGER),
    ):
        while not is_served(client, STRANGER):
            pass
        client.publish("a/1", "x")
        with (
            pytest.raises(sbus.RequestFailed, match=f"user {STRANGER} has answered"),
            client.last_values("a/", timeout_seconds=TIMEOUT_S),
        ):
            raise AssertionError("it trusts a stranger")
        with client.last_values("a/", uid=STRANGER, timeout_seconds=TIMEOUT_S) as messages:
            assert messages.receive() == sbus.Message(b"a/1", b"x")


@pytest.mark.parametrize("wants_sender", [True, False])
def test_senders_are_shown_if_the_program_asks_for_them(bus: Bus, wants_sender: bool) -> None:
    with (
        served(bus),
        sbus.blocking.connect(bus.address, sender=wants_sender) as client,
        client.subscription("b") as others,
    ):
        while not is_served(client):
            pass
        with client.last_values("a/", timeout_seconds=TIMEOUT_S) as messages:
            client.publish("a/1", "")
            client.publish("b", "")
            received = [one.receive(timeout_seconds=TIMEOUT_S) for one in (messages, others)]
        assert [message.sender is not None for message in received] == 2 * [wants_sender]


def test_neither_a_request_nor_a_value_ends_the_service(bus: Bus) -> None:
    """The answer to a deaf key has one part; a value of the largest size is missing, others not."""
    with served(bus, keys_max=9), sbus.blocking.connect(bus.address) as client:
        while not is_served(client):
            pass
        for number, size in enumerate((400_000, 409_000, 409_590)):
            client.publish(f"a/{number}", bytes(size))
        for number in range(100):
            client.publish("last-values/a/", b"!/cred/1/1/1/reply/x\0t%d\0" % number)
        client.publish("last-values/a/", b"!/cred/00/1/1/reply/x\0t\0")
        client.sync()
        with client.last_values("a/*", timeout_seconds=TIMEOUT_S) as messages:
            with pytest.raises(sbus.MessagesLost, match="has not kept 1 messages"):
                messages.receive()
            assert [len(messages.receive().payload) for _ in range(2)] == [400_000, 409_000]
            activities = [one.activity for one in client.me().clients]
        # Each answer ends with its first part, or puts the requester off.
        assert sum(activity.bytes_in for activity in activities if activity) < 60_000_000


@on_both_event_loops
async def test_tasks_join_on_one_connection_at_the_same_time(bus: Bus) -> None:
    received = set()

    async def join(client: sbus.Connection[sbus.Message], number: int) -> None:
        async with client.last_values(f"a/{number}") as messages:
            received.add((await messages.receive()).payload)

    with anyio.fail_after(TIMEOUT_S), served(bus, keys_max=20):
        async with sbus.connect(bus.address) as client:
            with sbus.blocking.connect(bus.address) as other:
                while not is_served(other):
                    pass
            for number in range(20):
                await client.publish(f"a/{number}", str(number))
            await client.sync()
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(join, client, number)
    assert received == {b"%d" % number for number in range(20)}


@pytest.mark.parametrize("pattern", ["a" * 4_090, "/".join("a" * 128), "!/presence/*/*"])
def test_a_pattern_without_a_key_for_its_requests_is_refused_before_it_is_sent(
    bus: Bus, pattern: str
) -> None:
    with sbus.blocking.connect(bus.address) as client:
        client.subscribe(pattern)
        with pytest.raises(sbus.PacketRefused):
            client.last_values(pattern)
        with pytest.raises(sbus.PacketRefused):
            client.serve_last_values(pattern)
        client.sync()
