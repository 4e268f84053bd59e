"""Requests between clients, as payloads of ordinary messages. The bus knows nothing of them.

    request   MSG KEY\0REPLYKEY\0TOKEN\0body
    answer    MSG REPLYKEY\0TOKEN\0body
    failure   MSG REPLYKEY\0TOKEN!\0text

A requester receives all answers under one secret key, REPLYKEY = `!/cred/GID/UID/PID/reply/ID` with
its own ids. TOKEN, letters and digits, identifies the request. If it cannot be guessed, only
recipients of the request can answer it.

The requester chooses the key under which the answerer publishes. So an answerer accepts only keys
of this form.
"""

import re
from typing import Final

import msgspec

from sbus.protocol.packets import NUL, Message

TOKEN_BYTES_MAX: Final = 62
"""With a mark behind it, it fits what the bus takes as a token."""
FAILURE_BYTES_MAX: Final = 4_096
"""Of the text of a failure, which may quote its request; the rest is left out."""
_FAILURE_MARK: Final = b"!"
_ID = rb"(?:0|[1-9][0-9]{0,9})"
_REQUEST = re.compile(
    rb"(!/cred/%b/%b/%b/reply/[0-9A-Za-z]{1,32})"
    rb"\0([0-9A-Za-z]{1,%d})\0(.*)" % (_ID, _ID, _ID, TOKEN_BYTES_MAX),
    re.DOTALL,
)


class Envelope(msgspec.Struct, frozen=True):
    """A request as its answerer receives it."""

    key: bytes
    payload: bytes
    reply_key: bytes
    token: bytes


class Answer(msgspec.Struct, frozen=True):
    """An answer to the request with this token; a failure has a text for people."""

    token: bytes
    payload: bytes
    is_failure: bool


def reply_key(own_key: bytes, connection: bytes) -> bytes:
    """Of a connection, after the `!/cred/GID/UID/PID` of its client."""
    return b"%b/reply/%b" % (own_key, connection)


def encode_request(reply_key: bytes, token: bytes, payload: bytes) -> bytes:
    """The payload of a request."""
    return b"%b\0%b\0%b" % (reply_key, token, payload)


def parse_request(message: Message) -> Envelope | None:
    """None for a message that is no request."""
    found = _REQUEST.fullmatch(message.payload)
    return found and Envelope(message.key, found[3], found[1], found[2])


def encode_answer(request: Envelope, payload: bytes, *, is_failure: bool = False) -> bytes:
    """The payload of an answer."""
    return b"%b%b\0%b" % (request.token, _FAILURE_MARK * is_failure, payload)


def parse_answer(payload: bytes) -> Answer:
    """Any payload has a token, which may be nobody's."""
    head, _, body = payload.partition(NUL)
    token = head.removesuffix(_FAILURE_MARK)
    return Answer(token, body, token != head)
