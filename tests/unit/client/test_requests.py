"""Requests and their replies, in both dialects."""

import pytest

from sbus.client.requests import (
    EchoBarrier,
    Identity,
    parse_identity,
)
from sbus.errors import ProtocolViolation


class TestIdentity:
    def test_is_the_last_part_behind_the_prefix_of_an_uplinked_bus(self) -> None:
        whole = b"!/cred/1/2/3/!/cred/4/5/6"
        assert parse_identity(whole) == Identity(whole, gid=4, uid=5, pid=6)

    def test_begins_the_keys_of_messages_to_oneself(self) -> None:
        own = parse_identity(b"!/cred/1/2/3/!/cred/4/5/6")
        assert own.secret_key("x/y") == own.secret_key(b"x/y") == own.key + b"/x/y"
        assert own.secret_key() == b"!/cred/1/2/3/!/cred/4/5/6/"

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"!/cred/1/2",
            b"!/cred/1/2/",
            b"!/cred/1/2/x",
            b"!/cred/1/2/-3",
            b"a/cred/1/2/3",
            b"!/cred/1/2/" + b"3" * 5000,
        ],
    )
    def test_is_nothing_else(self, payload: bytes) -> None:
        with pytest.raises(ProtocolViolation):
            parse_identity(payload)


def _token(request: bytes) -> bytes:
    return request.partition(b"\0")[2]


class TestDot:
    def test_a_reply_settles_its_request_and_those_before(self) -> None:
        barrier = EchoBarrier(b".")
        requests = [barrier.encode() for _ in range(3)]
        first, second, third = map(barrier.sent, requests)
        barrier.replied(_token(requests[1]))
        assert barrier.is_settled(first)
        assert barrier.is_settled(second)
        assert not barrier.is_settled(third)

    def test_a_reply_that_was_overtaken_unsettles_nothing(self) -> None:
        barrier = EchoBarrier(b".")
        requests = [barrier.encode() for _ in range(2)]
        _, second = map(barrier.sent, requests)
        barrier.replied(_token(requests[1]))
        barrier.replied(_token(requests[0]))
        assert barrier.is_settled(second)

    def test_a_message_from_another_client_with_that_key_settles_nothing(self) -> None:
        barrier = EchoBarrier(b".")
        old = barrier.encode()
        barrier.sent(old)
        barrier.replied(_token(old))
        ticket = barrier.sent(barrier.encode())
        for forged in (b"", b"1", _token(old), b"\0" * 32):
            barrier.replied(forged)
        assert not barrier.is_settled(ticket)
