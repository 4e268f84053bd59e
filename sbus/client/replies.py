"""The requests of a connection to other clients that wait for an answer.

One subscription serves all of them. It is made with the first request, and as the bus takes the
packets of a client in order, it is in force before that request is published.
"""

import os

from sbus.client.requests import Identity
from sbus.errors import BusError, RequestFailed
from sbus.protocol.packets import encode_subscribe
from sbus.protocol.request_reply import encode_request, parse_answer, reply_key

REQUEST_SECONDS = 10.0
"""How long a request waits for its answer, unless it says otherwise."""
TOKEN_BYTES = 8
"""Random ones of a token, which nobody guesses while a request is open."""


class OpenRequest:
    """A request that has been, or is being, sent."""

    def __init__(self, token: bytes, payload: bytes) -> None:
        self.token = token
        self.payload = payload
        """What is published."""
        self.is_settled = False
        self._answer = b""
        self._error: BusError | None = None

    def settle(self, answer: bytes, error: BusError | None) -> None:
        """What the request came to; the first counts."""
        if not self.is_settled:
            self._answer, self._error = answer, error
            self.is_settled = True

    def answer(self) -> bytes:
        """The answer; raises what went wrong."""
        if self._error is not None:
            raise self._error
        return self._answer


class Replies:
    """Those of one connection."""

    def __init__(self) -> None:
        self.key = b""
        """Where answers come; empty before the first request."""
        self._open: dict[bytes, OpenRequest] = {}

    def subscribe(self, identity: Identity) -> bytes:
        """Choose the key of the connection with this identity; returns the packet to send."""
        self.key = reply_key(identity.key, _token())
        return encode_subscribe(self.key)

    def open(self, payload: bytes) -> OpenRequest:
        """A new request; `close` follows."""
        token = _token()
        request = OpenRequest(token, encode_request(self.key, token, payload))
        self._open[token] = request
        return request

    def close(self, request: OpenRequest) -> None:
        """Nobody waits for this one any more."""
        del self._open[request.token]

    def feed(self, payload: bytes) -> None:
        """Take in an answer. Another one to the same request, or a late one, is ignored."""
        answer = parse_answer(payload)
        request = self._open.get(answer.token)
        if request is not None:
            text = answer.payload.decode(errors="backslashreplace")
            request.settle(answer.payload, RequestFailed(text) if answer.is_failure else None)

    def fail_all(self, error: BusError) -> None:
        """No answer will come to any that is open."""
        for request in self._open.values():
            request.settle(b"", error)


def no_answer(key: bytes | str, timeout_seconds: float | None) -> TimeoutError:
    """For a request with this key that has timed out."""
    name = key if isinstance(key, str) else key.decode(errors="backslashreplace")
    return TimeoutError(f"no answer to a request under {name!r} came within {timeout_seconds} s")


def _token() -> bytes:
    return os.urandom(TOKEN_BYTES).hex().encode()
