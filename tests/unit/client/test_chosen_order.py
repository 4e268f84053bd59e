"""What needs the one order of the bus, on connections with another order of their backlog."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from sbus.client import blocking
from sbus.errors import ConfigurationError
from sbus.protocol.packets import Message
from tests.unit.client.fake_bus import ANSWER, ORDER, WHOAMI, FakeBus

Bus = blocking.Connection[Message]
Blocks = Callable[[Bus], AbstractContextManager[object]]

BLOCKS: dict[str, Blocks] = {
    "requests": lambda bus: bus.requests("q"),
    "watch": lambda bus: bus.watch_members(),
    "last values": lambda bus: bus.last_values("a"),
}


@pytest.mark.parametrize("order", ["stack", "random", "latest"])
def test_requests_and_answers_are_refused_in_another_order(
    fake: FakeBus, bus: Bus, order: str
) -> None:
    bus.control(f"order/{order}")
    assert fake.receive() == b"CMSG order/" + order.encode()
    with pytest.raises(ConfigurationError, match=f"chosen order/{order}"):
        bus.request("q")
    with pytest.raises(ConfigurationError, match=f"chosen order/{order}"), bus.requests("q"):
        raise AssertionError("the block does not begin")
    fake.receive_nothing()


@pytest.mark.parametrize("block", list(BLOCKS.values()), ids=list(BLOCKS))
def test_blocks_are_refused_in_another_order(fake: FakeBus, block: Blocks) -> None:
    with fake.admitting(), blocking.connect(fake.address) as bus:
        fake.accept()
        bus.control("order/latest", b"ignored")
        fake.receive()
        with pytest.raises(ConfigurationError, match="chosen order/latest"), block(bus):
            raise AssertionError("the block does not begin")
        fake.receive_nothing()


def test_a_worker_group_is_refused_in_another_order(fake: FakeBus) -> None:
    with fake.admitting(), blocking.connect(fake.address, sender=True) as bus:
        fake.accept()
        assert fake.receive() == b"CMSG sender/on"
        bus.control("order/stack")
        fake.receive()
        fake.send(ANSWER)
        with pytest.raises(ConfigurationError, match="order/stack"), bus.worker_group("g", "jobs"):
            raise AssertionError("the block does not begin")


def test_the_order_is_asked_for_once(fake: FakeBus, bus: Bus) -> None:
    fake.send(ANSWER)
    with bus.requests("q"):
        assert [fake.receive() for _ in range(3)] == [ORDER, b"SUB q", WHOAMI]
    assert fake.receive() == b"UNSUB q"
    fake.send(ANSWER)
    with bus.requests("q"):
        assert [fake.receive() for _ in range(2)] == [b"SUB q", WHOAMI]


def test_what_has_the_order_already_does_not_ask_for_it(fake: FakeBus, bus: Bus) -> None:
    for order in (b"latest", b"queue"):
        bus.control(b"order/" + order)
        fake.receive()
    fake.send(ANSWER)
    with bus.requests("q"):
        assert [fake.receive() for _ in range(2)] == [b"SUB q", WHOAMI]


def test_the_order_stays_for_as_long_as_it_is_needed(fake: FakeBus, bus: Bus) -> None:
    fake.send(ANSWER)
    with bus.requests("q"):
        assert [fake.receive() for _ in range(3)] == [ORDER, b"SUB q", WHOAMI]
        with pytest.raises(ConfigurationError, match="use another connection"):
            bus.control("order/latest")
        fake.receive_nothing()
        bus.control("order/queue")
        bus.control("echo/off")
        assert [fake.receive(), fake.receive()] == [ORDER, b"CMSG echo/off"]
    assert fake.receive() == b"UNSUB q"
    bus.control("order/latest")
    assert fake.receive() == b"CMSG order/latest"


def test_a_plain_subscription_takes_any_order(fake: FakeBus, bus: Bus) -> None:
    bus.control("order/latest")
    fake.receive()
    fake.send(ANSWER)
    with bus.subscription("q"):
        assert [fake.receive(), fake.receive()] == [b"SUB q", WHOAMI]
