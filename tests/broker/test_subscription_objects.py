"""Several streams over one connection to a real bus, in several tasks, and over a reconnection."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest

import sbus
from sbus.client.inbox import InboxFull
from tests.support.bus import Bus
from tests.support.event_loops import on_both_event_loops

TIMEOUT_S = 60.0


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


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
