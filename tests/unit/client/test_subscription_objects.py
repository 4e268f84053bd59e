"""Several streams over one connection: who gets which message, and what a slow one costs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import pytest

from sbus.client import blocking
from sbus.client.blocking_streams import Subscription
from sbus.client.message_queue import Lost
from sbus.errors import PacketRefused
from sbus.protocol.packets import Message
from tests.support.threads import Task
from tests.unit.client.fake_bus import ANSWER, GREETING, ORDER, WHOAMI, FakeBus

Bus: TypeAlias = blocking.Connection[Message]
Connect: TypeAlias = Callable[..., Bus]
Messages: TypeAlias = Subscription[Message]


@contextmanager
def opened(fake: FakeBus, bus: Bus, *patterns: str) -> Iterator[Messages]:
    """A subscription, which the bus has accepted."""
    fake.send(ANSWER)
    with bus.subscription(*patterns) as messages:
        received = [fake.receive() for _ in range(len(patterns) + 1)]
        assert received == [*(b"SUB " + pattern.encode() for pattern in patterns), WHOAMI]
        yield messages


def payloads(messages: Messages | Bus) -> list[bytes]:
    """Everything that is there."""
    return [message.payload for message in messages.receive_many(timeout_seconds=60)]


def test_the_connection_itself_gets_what_it_has_subscribed_to(fake: FakeBus, bus: Bus) -> None:
    bus.subscribe("own")
    bus.subscribe("former*")
    bus.unsubscribe("former**")
    assert [fake.receive() for _ in range(3)] == [b"SUB own", b"SUB former*", b"UNSUB former**"]
    with opened(fake, bus, "a") as messages:
        fake.send(b"MSG a\x001", b"MSG own\x002", b"MSG former\x003", b"MSG a\x004")
        assert payloads(messages) == [b"1", b"4"]
        assert payloads(bus) == [b"2"]


def test_secret_messages_match_a_pattern_with_empty_ids(fake: FakeBus, bus: Bus) -> None:
    with opened(fake, bus, "!/cred//6//") as secret, opened(fake, bus, "") as open_:
        fake.send(b"MSG !/cred/5/6/7/a\x001", b"MSG a\x002")
        assert payloads(open_) == [b"2"]
        assert payloads(secret) == [b"1"]


def test_a_loss_is_told_to_all_in_its_place(fake: FakeBus, connect: Connect) -> None:
    with connect(fake.address, losses="report") as bus, ExitStack() as stack:
        assert fake.accept() == GREETING
        bus.subscribe("own")
        fake.receive()
        first, second = (stack.enter_context(opened(fake, bus, key)) for key in "ab")
        fake.send(b"MSG a\x001", b"CMSG !/lost\x005", b"MSG b\x002")
        assert first.receive_many() == [Message(b"a", b"1"), Lost(5)]
        assert second.receive_many() == [Lost(5), Message(b"b", b"2")]
        assert payloads_and_losses(bus) == [Lost(5)]
        assert bus.statistics().messages_lost == 5


def test_a_slow_one_loses_messages_and_the_others_do_not(fake: FakeBus, connect: Connect) -> None:
    with connect(fake.address, losses="report", inbox_messages_max=3) as bus:
        assert fake.accept() == GREETING
        bus.subscribe("")
        fake.receive()
        with opened(fake, bus, "a") as slow, opened(fake, bus, "a") as fast:
            sent = [b"%d" % number for number in range(10)]
            for payload in sent:
                fake.send(b"MSG a\0" + payload)
                assert payloads(fast) == [payload]
            assert payloads_and_losses(slow) == [*sent[:3], Lost(7)]
            assert payloads_and_losses(bus) == [*sent[:3], Lost(7)]
            fake.send(b"MSG a\0after")
            assert payloads(slow) == [b"after"]


def payloads_and_losses(messages: Messages | Bus) -> list[bytes | Lost]:
    items: list[Message | Lost] = list(messages.receive_many(timeout_seconds=60))
    return [item.payload if isinstance(item, Message) else item for item in items]


def test_leaving_unsubscribes_and_what_still_comes_is_forgotten(fake: FakeBus, bus: Bus) -> None:
    with opened(fake, bus, "keep") as kept:
        with opened(fake, bus, "a", "b/*"):
            fake.send(b"MSG a\x001")
        assert [fake.receive(), fake.receive()] == [b"UNSUB a", b"UNSUB b/*"]
        fake.send(b"MSG a\x002", b"MSG keep\x003")
        assert payloads(kept) == [b"3"]
    assert fake.receive() == b"UNSUB keep"
    assert bus.statistics().messages == 0


def test_a_refused_block_takes_no_subscription_of_another_one_away(fake: FakeBus, bus: Bus) -> None:
    bus.subscribe("own*")
    assert fake.receive() == b"SUB own*"
    with opened(fake, bus, "other"):
        fake.send(b"CMSG !/error\0too-many-patterns no", ANSWER)
        refused = bus.subscription("own**", "other", "a")
        with pytest.raises(PacketRefused, match="too-many-patterns"), refused:
            raise AssertionError("the block does not begin")
        assert [fake.receive() for _ in range(3)] == [b"SUB a", WHOAMI, b"UNSUB a"]
    assert fake.receive() == b"UNSUB other"


def test_a_refused_block_undoes_exactly_what_was_accepted(fake: FakeBus, bus: Bus) -> None:
    """Also for patterns that the connection has elsewhere."""
    bus.subscribe("own*")
    assert fake.receive() == b"SUB own*"
    with opened(fake, bus, "other"):
        begins = Task(bus.subscription("own**", "other", "a").__enter__)
        refusal = b"CMSG !/error\0too-many-patterns no"
        for pattern, replies in ((b"a", []), (b"own**", []), (b"other", [refusal])):
            assert fake.receive() == b"SUB " + pattern
            fake.answer(WHOAMI, *replies, ANSWER)
        with pytest.raises(PacketRefused, match="too-many-patterns"):
            begins.join()
        assert [fake.receive(), fake.receive()] == [b"UNSUB a", b"UNSUB own**"]
    assert fake.receive() == b"UNSUB other"


def test_a_refused_join_takes_no_subscription_of_a_service_away(fake: FakeBus) -> None:
    def join() -> None:
        with bus.last_values("a", timeout_seconds=60):
            raise AssertionError("the block does not begin")

    with fake.admitting(), blocking.connect(fake.address) as bus:
        fake.accept()
        bus.subscribe("last-values/a")
        assert fake.receive() == b"SUB last-values/a"
        joins = Task(join)
        assert [fake.receive(), fake.receive()] == [ORDER, b"SUB a"]
        while (packet := fake.receive()) == WHOAMI:
            fake.send(ANSWER)
        assert packet == b"CMSG sender/on"
        reply_key = fake.receive().removeprefix(b"SUB ")
        fake.answer(WHOAMI, ANSWER)
        assert fake.receive() == b"SUB last-values/a"
        fake.answer(WHOAMI, b"CMSG !/error\0too-many-patterns no", ANSWER)
        with pytest.raises(PacketRefused, match="too-many-patterns"):
            joins.join()
        undone = [b"UNSUB " + reply_key, b"CMSG sender/off", b"UNSUB a"]
        assert [fake.receive() for _ in undone] == undone
