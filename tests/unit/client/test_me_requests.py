"""`me`, asked over a bus of bare packets, by both clients."""

import msgspec
import pytest

import sbus
import sbus.client.blocking
from sbus.errors import ProtocolViolation
from sbus.protocol.admin_results import MeResult
from tests.support import admin_samples as sample
from tests.unit.client.fake_bus import ANSWER, WHOAMI, FakeBus

Blocking = sbus.client.blocking.Connection[sbus.Message]
ME = b"CMSG !/me"


def answer(connections: int) -> bytes:
    user = sample.user(connections=connections)
    result = MeResult(user=user, clients=[], subscriptions=[], unanswered=[])
    return ME + b"\0" + msgspec.json.encode(result)


def test_its_requests_and_those_of_whoami_are_not_mixed_up(fake: FakeBus, bus: Blocking) -> None:
    bus.control("!/cred/whoami")
    assert fake.receive() == WHOAMI
    fake.send(ANSWER)
    with pytest.raises(TimeoutError):
        bus.me(timeout_seconds=0.01)
    assert fake.receive() == ME
    fake.send(answer(1))
    with pytest.raises(TimeoutError):
        bus.sync(timeout_seconds=0.01)
    assert fake.receive() == WHOAMI


def test_the_reply_to_an_abandoned_request_is_not_taken_for_the_next(
    fake: FakeBus, bus: Blocking
) -> None:
    with pytest.raises(TimeoutError):
        bus.me(timeout_seconds=0.01)
    bus.control("!/me")
    fake.send(answer(1), answer(2), answer(3))
    assert bus.me(timeout_seconds=60).user.connections == 3


@pytest.mark.parametrize("payload", [b"", b"\0", b"{}", b'{"user":1}', b"\xff"])
def test_an_invalid_reply_is_an_error(fake: FakeBus, bus: Blocking, payload: bytes) -> None:
    fake.send(ME + b"\0" + payload)
    with pytest.raises(ProtocolViolation):
        bus.me(timeout_seconds=60)
