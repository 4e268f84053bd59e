"""Publishers of whose messages a rule refuses all: they finish, and learn of it.

The bus reads nothing from a client that leaves a notice unread, so a publisher that waits reads.
"""

from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest

import sbus
from sbus.client.inbox import InboxFull
from tests.support.bus import Bus
from tests.support.event_loops import on_both_event_loops

TIMEOUT_S = 60.0
PUBLISHED = 3_000
UNREAD = 2_000
"""Messages, more than the socket of their subscriber takes together with a notice for each."""
ALL_REFUSED = f"{PUBLISHED - 1} more refused since"


def test_a_blocking_one_finishes_and_learns_how_many(strict_bus: Bus) -> None:
    with sbus.blocking.connect(strict_bus.address) as client:
        for _ in range(PUBLISHED):
            client.publish("denied/a", timeout_seconds=TIMEOUT_S)
        with pytest.raises(sbus.PacketRefused, match=ALL_REFUSED):
            client.sync(timeout_seconds=TIMEOUT_S)
        client.publish_many("denied/a", [b""] * PUBLISHED, timeout_seconds=TIMEOUT_S)
        with pytest.raises(sbus.PacketRefused, match=ALL_REFUSED):
            client.sync(timeout_seconds=TIMEOUT_S)
        assert client.statistics().packets_refused == 2 * PUBLISHED


@on_both_event_loops
async def test_one_of_an_event_loop_does_so_too(strict_bus: Bus) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with sbus.connect(strict_bus.address) as client:
            for _ in range(PUBLISHED):
                await client.publish("denied/a")
            with pytest.raises(sbus.PacketRefused, match=ALL_REFUSED):
                await client.sync()
            await client.publish_many("denied/a", [b""] * PUBLISHED)
            with pytest.raises(sbus.PacketRefused, match=ALL_REFUSED):
                await client.sync()


def leave_unread(bus: Bus, client: sbus.blocking.Connection[sbus.Message]) -> None:
    """Have this many messages arrive for the subscription of a client that does not read."""
    client.subscribe("b")
    client.sync(timeout_seconds=TIMEOUT_S)
    with sbus.blocking.connect(bus.address) as speaker:
        for _ in range(UNREAD):
            speaker.publish("b", timeout_seconds=TIMEOUT_S)
        speaker.sync(timeout_seconds=TIMEOUT_S)


def test_a_blocking_one_with_a_full_inbox_is_told_to_receive(strict_bus: Bus) -> None:
    """Nobody else could make room. Nothing is lost, and what was not sent can be sent then."""
    with sbus.blocking.connect(strict_bus.address, inbox_messages_max=100) as client:
        leave_unread(strict_bus, client)
        published = received = 0
        while published < PUBLISHED:
            try:
                client.publish("denied/a", timeout_seconds=TIMEOUT_S)
                published += 1
            except InboxFull:
                with suppress(sbus.PacketRefused):  # of what was read before it was full
                    received += len(client.receive_many())
        assert 0 < received <= UNREAD


@on_both_event_loops
async def test_one_of_an_event_loop_with_a_full_inbox_waits_for_the_task_that_receives(
    strict_bus: Bus,
) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with (
            sbus.connect(strict_bus.address, inbox_messages_max=100) as client,
            sbus.connect(strict_bus.address) as speaker,
        ):
            await client.subscribe("b")
            await client.sync()
            await speaker.publish_many("b", [b""] * UNREAD)
            await speaker.sync()
            finished = anyio.Event()

            async def publish() -> None:
                await client.publish_many("denied/a", [b""] * PUBLISHED)
                finished.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish)
                while client.statistics().messages < 100:
                    await anyio.lowlevel.checkpoint()
                assert not finished.is_set()
                received = 0
                while received < UNREAD:
                    try:
                        received += len(await client.receive_many())
                    except sbus.PacketRefused:
                        continue
            assert finished.is_set()
