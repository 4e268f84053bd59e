"""Requests and answers with a bus of bare packets: what is sent, and what may come back."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import pytest

from sbus.client import blocking
from sbus.errors import (
    Disconnected,
    PacketRefused,
)
from sbus.protocol.packets import Message
from tests.unit.client.fake_bus import ANSWER, ORDER, WHOAMI, FakeBus

Bus: TypeAlias = blocking.Connection[Message]
TIMEOUT_S = 60.0
SOON_S = 0.05


def begin(bus: Bus, payload: bytes) -> "Future[bytes]":
    """A request of another thread."""
    executor = ThreadPoolExecutor(1)
    future = executor.submit(bus.request, "sum", payload, timeout_seconds=TIMEOUT_S)
    executor.shutdown(wait=False)
    return future


def sent(fake: FakeBus) -> tuple[bytes, bytes, bytes]:
    """Reply key, token and body of the request that is sent."""
    return sent_with_receipt(fake)[1:]


def sent_with_receipt(fake: FakeBus) -> tuple[bytes, bytes, bytes, bytes]:
    """Likewise, behind the token of the receipt that it asks for."""
    word, receipt, key, reply_key, token, body = fake.receive().split(b"\0", 5)
    assert (word, key) == (b"CMSG !/publish", b"sum")
    return receipt, reply_key, token, body


def first_sent(fake: FakeBus) -> tuple[bytes, bytes, bytes]:
    """Likewise, of the first request of a connection, which prepares for the answers."""
    assert fake.receive() == ORDER
    fake.answer(WHOAMI, ANSWER)
    subscribed = fake.receive()
    request = sent(fake)
    assert subscribed == b"SUB " + request[0]
    assert request[0].startswith(b"!/cred/5/6/7/reply/")
    return request


def test_one_subscription_serves_all_requests_of_a_connection(fake: FakeBus, bus: Bus) -> None:
    future = begin(bus, b"1")
    first = first_sent(fake)
    fake.send(b"MSG %b\0%b\0a" % first[:2])
    assert future.result(TIMEOUT_S) == b"a"
    future = begin(bus, b"2")
    second = sent(fake)
    assert second[0] == first[0]
    assert second[1] != first[1]
    fake.send(b"MSG %b\0%b\0late" % first[:2], b"MSG %b\0%b\0b" % second[:2])
    assert future.result(TIMEOUT_S) == b"b"


def test_silence_is_a_timeout(fake: FakeBus, bus: Bus) -> None:
    fake.send(ANSWER)
    with pytest.raises(TimeoutError, match=r"'sum' came within 0.05 s"):
        bus.request("sum", timeout_seconds=SOON_S)
    reply_key, token, _ = first_sent_without_whoami(fake)
    fake.send(b"MSG %b\0%b\0late" % (reply_key, token), ANSWER)
    bus.sync()
    assert bus.statistics().messages == 0


def first_sent_without_whoami(fake: FakeBus) -> tuple[bytes, bytes, bytes]:
    assert [fake.receive(), fake.receive()] == [ORDER, WHOAMI]
    fake.receive()
    return sent(fake)


def begin_second(fake: FakeBus, bus: Bus) -> tuple["Future[bytes]", bytes, bytes]:
    """A request of a connection that has made another one: its receipt's token, and what an answer
    begins with."""
    future = begin(bus, b"1")
    fake.send(b"MSG %b\0%b\0a" % first_sent(fake)[:2])
    future.result(TIMEOUT_S)
    future = begin(bus, b"2")
    receipt, reply_key, token, _ = sent_with_receipt(fake)
    return future, receipt, b"MSG %b\0%b\0" % (reply_key, token)


def test_a_refused_request_ends_the_wait(fake: FakeBus, bus: Bus) -> None:
    future, receipt, _ = begin_second(fake, bus)
    fake.send(b"CMSG !/receipt\0%b\0refused not-allowed by a rule" % receipt)
    with pytest.raises(PacketRefused, match="by a rule") as caught:
        future.result(TIMEOUT_S)
    assert caught.value.code == "not-allowed"


@pytest.mark.parametrize("counts", [b"1 0 0", b"0 1 0", b"0 0 1", b"?"])
def test_after_other_receipts_an_answer_may_come(fake: FakeBus, bus: Bus, counts: bytes) -> None:
    future, receipt, answer = begin_second(fake, bus)
    fake.send(b"CMSG !/receipt\0%b\0%b" % (receipt, counts), answer + b"b")
    assert future.result(TIMEOUT_S) == b"b"


def test_an_answer_may_come_before_the_receipt(fake: FakeBus, bus: Bus) -> None:
    future, receipt, answer = begin_second(fake, bus)
    fake.send(answer + b"b", b"CMSG !/receipt\0%b\x001 0 0" % receipt)
    assert future.result(TIMEOUT_S) == b"b"


def test_the_end_of_the_bus_ends_the_wait(fake: FakeBus, bus: Bus) -> None:
    future = begin(bus, b"1")
    first_sent(fake)
    fake.hang_up()
    with pytest.raises(Disconnected):
        future.result(TIMEOUT_S)


def test_a_key_that_no_bus_takes_is_the_callers_mistake(fake: FakeBus, bus: Bus) -> None:
    fake.send(ANSWER)
    with pytest.raises(PacketRefused, match="reserved"):
        bus.request("a/!/b", timeout_seconds=TIMEOUT_S)


class TestAnswering:
    def test_publishes_where_the_requester_listens(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(ANSWER)
        with bus.requests("sum", "product") as requests:
            received = [fake.receive() for _ in range(4)]
            assert received == [ORDER, b"SUB sum", b"SUB product", WHOAMI]
            for token in (b"t1", b"t2"):
                fake.send(b"MSG sum\0!/cred/1/2/3/reply/9\0%b\0body" % token)
            request = requests.receive(timeout_seconds=TIMEOUT_S)
            assert (request.key, request.payload) == (b"sum", b"body")
            request.reply("3")
            assert fake.receive() == b"MSG !/cred/1/2/3/reply/9\0t1\x003"
            requests.receive(timeout_seconds=TIMEOUT_S).fail("no number")
            assert fake.receive() == b"MSG !/cred/1/2/3/reply/9\0t2!\0no number"
        assert [fake.receive(), fake.receive()] == [b"UNSUB sum", b"UNSUB product"]

    def test_passes_over_what_is_no_request_and_over_gaps(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(ANSWER)
        with bus.requests("sum") as requests:
            fake.send(b"MSG sum\0plain", b"CMSG !/lost\x003")
            fake.send(b"CMSG !/error\0not-allowed no", b"MSG sum\0!/cred/1/2/3/reply/9\0t\0x")
            assert requests.receive(timeout_seconds=TIMEOUT_S).payload == b"x"
            with pytest.raises(PacketRefused, match="not-allowed"):
                bus.receive(timeout_seconds=TIMEOUT_S)

    def test_has_a_timeout(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(ANSWER)
        with bus.requests("sum") as requests, pytest.raises(TimeoutError):
            requests.receive(timeout_seconds=SOON_S)
