"""The requests of a connection to other clients that wait for an answer.

One subscription serves all of them. It is made with the first request. The bus processes the
packets of a client in order, so the subscription is in force before that request is published.

A request is published with a receipt, which tells at once if no client subscribes to its key.
"""

import os

from sbus.client.packet_encoder import PacketEncoder
from sbus.client.receipts import OpenReceipt, Receipts
from sbus.client.requests import Identity
from sbus.errors import BusError, NobodyListens, RequestFailed
from sbus.protocol.request_reply import encode_request, parse_answer, reply_key

REQUEST_SECONDS = 10.0
"""How long a request waits for its answer, unless it says otherwise."""
TOKEN_BYTES = 8
"""Random ones of a token, which nobody guesses while a request is open."""


class OpenRequest:
    """A request that has been, or is being, sent."""

    def __init__(self, key: str, token: bytes, receipt: OpenReceipt) -> None:
        self.token = token
        self.receipt = receipt
        """For its message; has the packet to send."""
        self._key = key
        self._is_answered = False
        self._answer = b""
        self._failure: BusError | None = None

    @property
    def is_settled(self) -> bool:
        """Whether its answer has come, or none will."""
        return self._is_answered or self._delivery_error() is not None

    def settle(self, answer: bytes, failure: BusError | None) -> None:
        """What was answered; the first answer counts."""
        if not self._is_answered:
            self._answer, self._failure = answer, failure
            self._is_answered = True

    def answer(self) -> bytes:
        """The answer to a settled request; raises what went wrong."""
        error = self._failure if self._is_answered else self._delivery_error()
        if error is not None:
            raise error
        return self._answer

    def _delivery_error(self) -> BusError | None:
        """Why nobody has received it, as far as that is known."""
        result = self.receipt.result
        if result is None or isinstance(result, BusError):
            return result
        if result.has_listeners:
            return None
        return NobodyListens(f"nobody listens to requests under {self._key!r}")


class Replies:
    """Those of one connection."""

    def __init__(self, receipts: Receipts) -> None:
        self.key = b""
        """Where answers come; empty before the first request."""
        self._receipts = receipts
        self._open: dict[bytes, OpenRequest] = {}

    @staticmethod
    def new_key(identity: Identity) -> bytes:
        """For the connection with this identity; the `key` once it is subscribed to."""
        return reply_key(identity.key, _token())

    def open(self, encoder: PacketEncoder, key: bytes | str, payload: bytes | str) -> OpenRequest:
        """A new request; `close` follows."""
        token = _token()
        content = encode_request(self.key, token, encoder.payload(payload))
        receipt = self._receipts.open(encoder.publish(key, content))
        request = self._open[token] = OpenRequest(_shown(key), token, receipt)
        return request

    def close(self, request: OpenRequest) -> None:
        """Nobody waits for this one any more."""
        self._receipts.close(request.receipt)
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
    text = f"no answer to a request under {_shown(key)!r} came within {timeout_seconds} s"
    return TimeoutError(text)


def _shown(key: bytes | str) -> str:
    return key if isinstance(key, str) else key.decode(errors="backslashreplace")


def _token() -> bytes:
    return os.urandom(TOKEN_BYTES).hex().encode()
