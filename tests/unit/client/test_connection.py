"""The trio client against a bus of bare packets: who waits, who reads, what a cancel costs."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Unpack

import pytest
import trio
import trio.testing

import sbus
from sbus.client.connection import Connection
from sbus.client.link import LinkOptions
from sbus.errors import Disconnected
from sbus.protocol.packets import Message
from tests.unit.client.fake_bus import ANSWER, GREETING, WHOAMI, FakeBus

Bus = Connection[Message]
TIMEOUT_S = 10.0


@asynccontextmanager
async def connected(fake: FakeBus, **options: Unpack[LinkOptions]) -> AsyncIterator[Bus]:
    with trio.fail_after(TIMEOUT_S):
        async with sbus.connect(fake.address, **options) as bus:
            assert fake.accept() == GREETING
            yield bus


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
        ],
        ids=["subscribe", "unsubscribe", "publish", "control", "receive", "many", "next"],
    )
    async def test_is_a_checkpoint(
        self, fake: FakeBus, call: Callable[[Bus], Awaitable[object]]
    ) -> None:
        """Even when nothing keeps it from returning at once."""
        async with connected(fake) as bus:
            fake.send(b"MSG a\x001", b"MSG a\x002")
            assert await bus.receive() == Message(b"a", b"1")
            with trio.testing.assert_checkpoints():
                await call(bus)

    async def test_that_asks_is_a_checkpoint(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            fake.send(ANSWER, ANSWER)
            with trio.testing.assert_checkpoints():
                await bus.sync()
            with trio.testing.assert_checkpoints():
                await bus.whoami()

    async def test_that_was_cancelled_before_has_done_nothing(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            fake.send(b"MSG a\x001")
            with trio.CancelScope() as scope:
                scope.cancel()
                await bus.publish("a", "b")
            assert scope.cancelled_caught
            with trio.CancelScope() as scope:
                scope.cancel()
                await bus.receive()
            assert scope.cancelled_caught
            fake.receive_nothing()
            assert await bus.receive() == Message(b"a", b"1")


class TestPublishing:
    async def test_by_several_tasks_at_a_time_is_fine_also_when_held_back(
        self, fake: FakeBus
    ) -> None:
        async with connected(fake) as bus, trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(bus.publish, f"{number}", bytes(100_000))
            await trio.testing.wait_all_tasks_blocked()
            keys = set()
            for _ in range(20):
                await trio.testing.wait_all_tasks_blocked()
                keys.add(fake.receive()[4:].partition(b"\0")[0])
            assert keys == {b"%d" % number for number in range(20)}


class TestWaiting:
    async def test_a_sync_takes_no_message_for_its_reply(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            done = trio.Event()

            async def sync() -> None:
                await bus.sync()
                done.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(sync)
                await trio.testing.wait_all_tasks_blocked()
                assert fake.receive() == WHOAMI
                fake.send(b"MSG a\x001")
                await trio.testing.wait_all_tasks_blocked()
                assert not done.is_set()
                fake.send(ANSWER)
            assert done.is_set()
            assert await bus.receive() == Message(b"a", b"1")

    async def test_ends_when_another_task_closes_it_while_we_wait(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            ended = trio.Event()

            async def iterate() -> None:
                async for _message in bus:
                    pass
                ended.set()

            async def sync() -> None:
                with pytest.raises(Disconnected, match="this program"):
                    await bus.sync()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(iterate)
                nursery.start_soon(sync)
                await trio.testing.wait_all_tasks_blocked()
                bus.close()
            assert ended.is_set()


class TestSeveralReaders:
    async def test_a_reply_reaches_its_task_whichever_task_reads_it(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            seen: list[Message] = []

            async def iterate() -> None:
                async for message in bus:
                    seen.append(message)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(iterate)
                await trio.testing.wait_all_tasks_blocked()
                for round_number in range(3):
                    async with trio.open_nursery() as asking:
                        asking.start_soon(bus.sync)
                        asking.start_soon(bus.whoami)
                        await trio.testing.wait_all_tasks_blocked()
                        fake.send(b"MSG a\0%d" % round_number, ANSWER, ANSWER)
                await trio.testing.wait_all_tasks_blocked()
                assert seen == [Message(b"a", b"%d" % number) for number in range(3)]
                nursery.cancel_scope.cancel()

    async def test_a_message_reaches_the_receiving_task_when_another_task_reads_it(
        self, fake: FakeBus
    ) -> None:
        async with connected(fake) as bus:
            seen: list[Message] = []

            async def receive() -> None:
                seen.append(await bus.receive())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(bus.sync)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(receive)
                await trio.testing.wait_all_tasks_blocked()
                fake.send(b"MSG a\x001")
                await trio.testing.wait_all_tasks_blocked()
                assert seen == [Message(b"a", b"1")]
                fake.send(ANSWER)

    async def test_when_the_reading_task_is_cancelled_another_one_goes_on(
        self, fake: FakeBus
    ) -> None:
        async with connected(fake) as bus:
            seen: list[Message] = []
            first = trio.CancelScope()

            async def receive_first() -> None:
                with first:
                    await bus.receive()

            async def receive_second() -> None:
                seen.append(await bus.receive())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive_first)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(receive_second)
                await trio.testing.wait_all_tasks_blocked()
                first.cancel()
                await trio.testing.wait_all_tasks_blocked()
                fake.send(b"MSG a\x001")
            assert seen == [Message(b"a", b"1")]


class TestDisconnection:
    async def test_seen_while_publishing_has_the_reason_that_the_bus_gave(
        self, fake: FakeBus
    ) -> None:
        """The reason may come after the moment from which sending fails."""
        async with connected(fake) as bus, trio.open_nursery() as nursery:
            assert fake.client is not None
            fake.client.shutdown(0)  # SHUT_RD, as the bus begins a disconnection

            async def publish() -> None:
                with pytest.raises(Disconnected, match="too much"):
                    await bus.publish("a")

            nursery.start_soon(publish)
            await trio.testing.wait_all_tasks_blocked()
            fake.send(b"MSG a\x001", b"CMSG !/error\0too-slow too much")
            fake.hang_up()
