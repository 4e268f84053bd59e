"""The asynchronous client with a bus of bare packets: who waits, who reads, what a cancel costs."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Unpack

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import sbus
from sbus.client.connection import Connection
from sbus.client.options import LinkOptions
from sbus.errors import Disconnected
from sbus.protocol.packets import Message
from tests.support.event_loops import on_both_event_loops
from tests.unit.client.fake_bus import ANSWER, GREETING, FakeBus

Bus = Connection[Message]
TIMEOUT_S = 60.0


@asynccontextmanager
async def connected(fake: FakeBus, **options: Unpack[LinkOptions]) -> AsyncIterator[Bus]:
    with anyio.fail_after(TIMEOUT_S), fake.admitting():
        async with sbus.connect(fake.address, **options) as bus:
            assert fake.accept() == GREETING
            yield bus


@contextmanager
def cancelled() -> Iterator[None]:
    """What waits in here is cancelled, and something has to wait."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        yield
    assert scope.cancelled_caught


class TestEveryCall:
    @pytest.mark.parametrize(
        "call",
        [
            lambda bus: bus.subscribe("a"),
            lambda bus: bus.unsubscribe("a"),
            lambda bus: bus.publish("a"),
            lambda bus: bus.control("a"),
            lambda bus: bus.receive(),
            lambda bus: bus.receive_many(),
            lambda bus: bus.__anext__(),
            lambda bus: bus.sync(),
            lambda bus: bus.whoami(),
        ],
        ids=[
            *("subscribe", "unsubscribe", "publish", "control", "receive", "many", "next"),
            *("sync", "whoami"),
        ],
    )
    @on_both_event_loops
    async def test_is_a_checkpoint(
        self, fake: FakeBus, call: Callable[[Bus], Awaitable[object]]
    ) -> None:
        """Even when nothing keeps it from returning at once."""
        async with connected(fake) as bus:
            fake.send(b"MSG a\x001", b"MSG a\x002", ANSWER)
            assert await bus.receive() == Message(b"a", b"1")
            with cancelled():
                await call(bus)

    @on_both_event_loops
    async def test_that_was_cancelled_before_has_done_nothing(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            fake.send(b"MSG a\x001")
            with cancelled():
                await bus.publish("a", "b")
            with cancelled():
                await bus.receive()
            fake.receive_nothing()
            assert await bus.receive() == Message(b"a", b"1")


class TestPublishing:
    @on_both_event_loops
    async def test_by_several_tasks_at_a_time_is_fine_also_when_held_back(
        self, fake: FakeBus
    ) -> None:
        async with connected(fake) as bus, anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(bus.publish, f"{number}", bytes(100_000))
            await anyio.wait_all_tasks_blocked()
            keys = set()
            for _ in range(20):
                packet = await anyio.to_thread.run_sync(fake.receive)
                keys.add(packet[4:].partition(b"\0")[0])
            assert keys == {b"%d" % number for number in range(20)}


class TestSeveralReaders:
    @on_both_event_loops
    async def test_when_the_reading_task_is_cancelled_another_one_goes_on(
        self, fake: FakeBus
    ) -> None:
        async with connected(fake) as bus:
            seen: list[Message] = []
            first = anyio.CancelScope()

            async def receive_first() -> None:
                with first:
                    await bus.receive()

            async def receive_second() -> None:
                seen.append(await bus.receive())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive_first)
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(receive_second)
                await anyio.wait_all_tasks_blocked()
                first.cancel()
                await anyio.wait_all_tasks_blocked()
                fake.send(b"MSG a\x001")
            assert seen == [Message(b"a", b"1")]


class TestDisconnection:
    @on_both_event_loops
    async def test_seen_while_publishing_has_the_reason_that_the_bus_gave(
        self, fake: FakeBus
    ) -> None:
        """The reason may come after the moment from which sending fails."""
        async with connected(fake) as bus, anyio.create_task_group() as tasks:
            assert fake.client is not None
            fake.client.shutdown(0)  # SHUT_RD, as the bus begins a disconnection

            async def publish() -> None:
                with pytest.raises(Disconnected, match="too much"):
                    await bus.publish("a")

            tasks.start_soon(publish)
            await anyio.wait_all_tasks_blocked()
            fake.send(b"MSG a\x001", b"CMSG !/error\0too-slow too much")
            fake.hang_up()
