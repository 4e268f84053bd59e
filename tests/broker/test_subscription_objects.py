"""Several streams over one connection to a real bus, in several tasks, and over a reconnection."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

import sbus
from sbus.client.inbox import InboxFull
from sbus.client.subscription import Subscription
from tests.support.bus import Bus, running_bus
from tests.support.event_loops import on_both_event_loops

TIMEOUT_S = 60.0


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


@on_both_event_loops
async def test_tasks_that_iterate_together_each_see_all_their_messages(bus: Bus) -> None:
    seen: dict[str, list[bytes]] = {"even": [], "odd": [], "all": []}

    async def iterate(name: str, messages: Subscription[sbus.Message]) -> None:
        async for message in messages:
            if message.payload == b"end":
                return
            seen[name].append(message.payload)

    with anyio.fail_after(TIMEOUT_S):
        async with (
            sbus.connect(bus.address) as client,
            client.subscription("number/0") as even,
            client.subscription("number/1") as odd,
            client.subscription("number/*", "number/1") as all_,
            anyio.create_task_group() as tasks,
        ):
            for name, messages in (("even", even), ("odd", odd), ("all", all_)):
                tasks.start_soon(iterate, name, messages)
            for number in range(1_000):
                await client.publish(f"number/{number % 2}", str(number))
                if number % 100 == 0:
                    await client.sync()
            for key in ("number/0", "number/1"):
                await client.publish(key, "end")
    numbers = [str(number).encode() for number in range(1_000)]
    assert (seen["even"], seen["odd"], seen["all"]) == (numbers[::2], numbers[1::2], numbers)


@on_both_event_loops
async def test_a_lost_connection_is_a_gap_in_each(tmp_path: Path) -> None:
    with anyio.fail_after(TIMEOUT_S):
        with running_bus(tmp_path) as bus:
            connection = sbus.connect(bus.address, losses="report", reconnect=True)
            client = await connection.__aenter__()
            streams = [client.subscription("a"), client.subscription("a", "b")]
            one, other = [await stream.__aenter__() for stream in streams]
        with running_bus(tmp_path, "--replace") as bus:
            for messages in (one, other):
                assert isinstance(await messages.receive(), sbus.Reconnected)
            await client.sync()
            await client.publish("a", "again")
            for messages in (one, other):
                assert await messages.receive() == sbus.Message(b"a", b"again")
            for stream in reversed(streams):
                await stream.__aexit__(None, None, None)
            await connection.__aexit__(None, None, None)


@pytest.mark.parametrize(
    "open_stream",
    [
        lambda client: client.subscription("x"),
        lambda client: client.requests("x"),
        lambda client: client.watch_members(),
    ],
    ids=["subscription", "requests", "watch"],
)
@on_both_event_loops
async def test_after_the_last_stream_a_connection_stops_reading_rather_than_lose_messages(
    bus: Bus, open_stream: Callable[[Any], AbstractAsyncContextManager[object]]
) -> None:
    """So what it chose for a full backlog holds again."""
    with anyio.fail_after(TIMEOUT_S):
        async with (
            sbus.connect(bus.address, inbox_messages_max=10) as client,
            sbus.connect(bus.address) as speaker,
        ):
            await client.subscribe("a")
            async with open_stream(client):
                pass
            await client.sync()
            await speaker.publish_many("a", [b"%d" % number for number in range(1_000)])
            await speaker.sync()
            with pytest.raises(InboxFull):
                await client.sync()
            received = [(await client.receive()).payload for _ in range(1_000)]
    assert received == [b"%d" % number for number in range(1_000)]
