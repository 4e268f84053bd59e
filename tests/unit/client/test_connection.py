"""The trio client against a bus of bare packets: who waits, who reads, what a cancel costs."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Unpack

import pytest
import trio
import trio.testing

import sbus
from sbus.client.connection import Connection
from sbus.client.inbox import InboxFull, Lost
from sbus.client.link import LinkOptions
from sbus.client.requests import EchoBarrier
from sbus.errors import (
    AddressError,
    ConfigurationError,
    Disconnected,
    MessagesLost,
    PacketRefused,
)
from sbus.protocol.packets import Message
from tests.unit.client.fake_bus import ANSWER, GREETING, IDENTITY, WHOAMI, FakeBus

Bus = Connection[Message]
TIMEOUT_S = 10.0


@asynccontextmanager
async def connected(fake: FakeBus, **options: Unpack[LinkOptions]) -> AsyncIterator[Bus]:
    with trio.fail_after(TIMEOUT_S):
        async with sbus.connect(fake.address, **options) as bus:
            assert fake.accept() == GREETING
            yield bus


class TestPackets:
    async def test_are_as_the_protocol_writes_them(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            await bus.subscribe("a/*")
            await bus.unsubscribe(b"a/*")
            await bus.publish("k", "p")
            await bus.publish(b"k")
            await bus.control("echo/off")
            await bus.control("x", b"y")
            received = [fake.receive() for _ in range(6)]
        assert received == [
            b"SUB a/*",
            b"UNSUB a/*",
            b"MSG k\0p",
            b"MSG k\0",
            b"CMSG echo/off",
            b"CMSG x\0y",
        ]

    async def test_with_a_nul_in_the_key_are_the_callers_mistake(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            with pytest.raises(ValueError, match="NUL"):
                await bus.publish(b"a\0b")
            fake.receive_nothing()

    async def test_over_the_limit_are_not_sent(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            with pytest.raises(PacketRefused, match="send it in parts"):
                await bus.publish(b"a", bytes(409_600))
            fake.receive_nothing()
            await bus.publish(b"a", bytes(409_600 - len(b"MSG a\0")))
            assert len(fake.receive()) == 409_600

    async def test_of_the_dot_dialect_hold_no_control_messages(self, fake: FakeBus) -> None:
        async with sbus.connect(fake.address, dialect="dot") as bus:
            assert fake.accept().startswith(b"SUB sbus.sync.")
            with pytest.raises(ConfigurationError, match="no control messages"):
                await bus.control("echo/off")
            with pytest.raises(ConfigurationError, match="no control messages"):
                await bus.whoami()
            fake.receive_nothing()


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
    async def test_waits_while_the_bus_holds_it_back_and_cancelled_sends_nothing(
        self, fake: FakeBus
    ) -> None:
        async with connected(fake) as bus:
            sent = 0
            while True:
                with trio.move_on_after(0.05) as scope:
                    await bus.publish("a", b"%d " % sent + bytes(100_000))
                    sent += 1
                if scope.cancelled_caught:
                    break
            assert sent > 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bus.publish, "a", b"last")
                await trio.testing.wait_all_tasks_blocked()
                received = [fake.receive() for _ in range(sent)]
            assert [packet[6:].split()[0] for packet in received] == [
                b"%d" % number for number in range(sent)
            ]
            assert fake.receive() == b"MSG a\0last"
            fake.receive_nothing()

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


class TestSync:
    async def test_returns_when_its_reply_has_come(self, fake: FakeBus) -> None:
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

    async def test_is_a_message_to_oneself_in_the_dot_dialect(self, fake: FakeBus) -> None:
        async with sbus.connect(fake.address, dialect="dot") as bus:
            key = fake.accept().removeprefix(b"SUB ")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bus.sync)
                await trio.testing.wait_all_tasks_blocked()
                question = fake.receive()
                assert question.startswith(b"MSG " + key + b"\0")
                fake.send(b"MSG a\x001", question)
            assert await bus.receive() == Message(b"a", b"1")

    async def test_raises_what_was_refused_before(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            await bus.publish("!/x")
            fake.send(b"CMSG !/error\0reserved that key belongs to the bus", ANSWER, ANSWER)
            with pytest.raises(PacketRefused, match="that key belongs to the bus"):
                await bus.sync()
            await bus.sync()

    async def test_cancelled_leaves_its_reply_ignored(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            with trio.move_on_after(0.01) as scope:
                await bus.sync()
            assert scope.cancelled_caught
            fake.send(ANSWER)
            with trio.move_on_after(0.05) as scope:
                await bus.sync()
            assert scope.cancelled_caught, "it took the answer to the question before"

    async def test_counts_a_whoami_that_was_sent_by_hand(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            await bus.control("!/cred/whoami")
            fake.send(ANSWER)
            with trio.move_on_after(0.05) as scope:
                await bus.sync()
            assert scope.cancelled_caught

    async def test_finds_its_reply_behind_no_more_than_the_inbox_holds(self, fake: FakeBus) -> None:
        async with connected(fake, inbox_messages_max=10) as bus:
            fake.send(*[b"MSG a\0%d" % number for number in range(11)], ANSWER)
            with pytest.raises(InboxFull, match=r"10 messages .*receive them first"):
                await bus.sync()
            assert len(await bus.receive_many()) == 10
            assert await bus.receive() == Message(b"a", b"10")
            fake.send(ANSWER)
            await bus.sync()

    async def test_cancelled_leaves_no_request_behind(self, fake: FakeBus) -> None:
        async with sbus.connect(fake.address, dialect="dot") as bus:
            fake.accept()
            for _ in range(3):
                with trio.move_on_after(0.01):
                    await bus.sync()
            assert isinstance(bus._link.barrier, EchoBarrier)
            assert not bus._link.barrier._tickets

    async def test_of_a_bus_that_goes_away_is_an_error(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            fake.send(b"MSG a\x001")

            async def sync() -> None:
                with pytest.raises(Disconnected, match="too much"):
                    await bus.sync()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(sync)
                await trio.testing.wait_all_tasks_blocked()
                fake.send(b"CMSG !/error\0flood too much")
                fake.hang_up()
            assert await bus.receive() == Message(b"a", b"1")

    async def test_whoami_says_who(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            fake.send(ANSWER)
            assert await bus.whoami() == sbus.Identity(IDENTITY, gid=5, uid=6, pid=7)


class TestIteration:
    async def test_goes_on_after_a_loss_exactly_at_the_gap(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            fake.send(b"MSG a\x001", b"CMSG !/lost\x005", b"MSG a\x002", b"MSG end\0")
            seen: list[object] = []

            async def iterate() -> None:
                async for message in bus:
                    seen.append(message)

            with pytest.raises(MessagesLost) as caught:
                await iterate()
            seen.append(caught.value.count)
            async for message in bus:
                if message.key == b"end":
                    break
                seen.append(message)
            assert seen == [Message(b"a", b"1"), 5, Message(b"a", b"2")]

    async def test_reports_losses_among_the_messages_on_request(self, fake: FakeBus) -> None:
        async with sbus.connect(fake.address, losses="report") as bus:
            fake.accept()
            fake.send(b"MSG a\x001", b"CMSG !/lost\x00?", b"MSG a\x002")
            seen = [await anext(bus) for _ in range(3)]
            assert seen == [Message(b"a", b"1"), Lost(None), Message(b"a", b"2")]

    async def test_of_a_bus_that_went_away_is_an_error(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            fake.send(b"MSG a\x001", b"CMSG !/error\0no-nul a MSG packet needs a NUL")
            fake.hang_up()
            assert await anext(bus) == Message(b"a", b"1")
            for _ in range(2):
                with pytest.raises(Disconnected, match="a MSG packet needs a NUL"):
                    await anext(bus)

    async def test_just_ends_when_we_have_closed_it_ourselves(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            fake.send(b"MSG a\x001", b"MSG a\x002")
            async for _message in bus:
                bus.close()
            with pytest.raises(Disconnected, match="this program"):
                await bus.receive()
            with pytest.raises(Disconnected, match="this program"):
                await bus.publish("a")
            with pytest.raises(Disconnected, match="this program"):
                await bus.sync()

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


class TestReceiveMany:
    async def test_takes_everything_that_is_there(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            fake.send(*[b"MSG a\0%d" % number for number in range(100)])
            assert await bus.receive_many(30) == [Message(b"a", b"%d" % n) for n in range(30)]
            assert len(await bus.receive_many()) == 70

    async def test_of_none_is_a_mistake(self, fake: FakeBus) -> None:
        async with connected(fake) as bus:
            with pytest.raises(ValueError, match="at least one"):
                await bus.receive_many(0)


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
            fake.send(b"MSG a\x001", b"CMSG !/error\0flood too much")
            fake.hang_up()

    async def test_without_a_reason_does_not_wait_for_ever(
        self, fake: FakeBus, autojump_clock: trio.testing.MockClock
    ) -> None:
        async with connected(fake) as bus:
            assert fake.client is not None
            fake.client.shutdown(0)
            with pytest.raises(Disconnected, match="gave no reason"):
                await bus.publish("a")

    async def test_at_once_is_an_error_of_connecting(self, tmp_path: Path) -> None:
        with pytest.raises(AddressError, match="is sbusd running"):
            async with sbus.connect(str(tmp_path / "none")):
                raise AssertionError("connected to nothing")


async def test_statistics_count_from_the_beginning(fake: FakeBus) -> None:
    async with connected(fake) as bus:
        fake.send(b"MSG a\x001", b"CMSG !/lost\x005", ANSWER)
        await bus.sync()
        statistics = bus.statistics()
        assert statistics.messages_received == 1
        assert statistics.messages_lost == 5
        assert statistics.messages == 2
