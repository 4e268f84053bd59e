"""Requests of the admin protocol and their replies, as packets."""

import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from sbus.errors import SbusError
from sbus.protocol import admin
from sbus.validation import explain

T = TypeVar("T")

Handler = Callable[[Any], Awaitable[msgspec.Struct]]
Handlers = Mapping[type[admin.Request], Handler]
"""What finds the result of each request. Raises AdminFault."""


Reply = Callable[[msgspec.Struct], Awaitable[None]]
Takers = Mapping[type[admin.Request], Callable[[Any, socket.socket, Reply], Awaitable[None]]]
"""What replies to a request and then uses its connection for something else. The connection is
closed afterwards. Raises AdminFault, and then nothing has happened."""


class AdminFault(SbusError):
    """There is no result; `code` is one of those that `admin.Fault` names."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class RequestHead(msgspec.Struct, frozen=True):
    """What has to be right before the rest of a request is looked at."""

    verb: str
    id: int = 0
    version: int = admin.VERSION


_head_decoder = msgspec.json.Decoder(RequestHead)
_decoder: msgspec.json.Decoder[admin.Request] = msgspec.json.Decoder(admin.Request)
_encoder = msgspec.json.Encoder()
_VERBS = frozenset(str(request.__struct_config__.tag) for request in admin.RESULTS)


def parse_head(packet: bytes) -> RequestHead:
    """The head of a request. Raises AdminFault."""
    if len(packet) > admin.REQUEST_BYTES_MAX:
        raise AdminFault("bad-request", f"a request has at most {admin.REQUEST_BYTES_MAX} bytes")
    return _decode(_head_decoder, packet)


def parse_request(head: RequestHead, packet: bytes) -> admin.Request:
    """The request with this head. Raises AdminFault."""
    if head.version != admin.VERSION:
        raise AdminFault(
            "unsupported-version", f"this bus speaks version {admin.VERSION} of the admin protocol"
        )
    if head.verb not in _VERBS:
        known = ", ".join(sorted(_VERBS))
        text = f"there is no verb {head.verb[:64]!r}; choose from {known}"
        raise AdminFault("unknown-verb", text)
    return _decode(_decoder, packet, head.verb)


def _decode(decoder: msgspec.json.Decoder[T], packet: bytes, verb: str = "") -> T:
    """What a packet holds. Raises AdminFault, which names the `verb` if that is known."""
    try:
        return decoder.decode(packet)
    except msgspec.DecodeError as error:
        raise AdminFault("bad-request", explain(error, verb)) from error
    except UnicodeDecodeError as error:
        raise AdminFault("bad-request", "the request holds a string that is no UTF-8") from error
    except RecursionError as error:
        raise AdminFault("bad-request", "the request is nested too deeply") from error


def encode_reply(number: int, result: msgspec.Struct | AdminFault) -> bytes:
    """The reply to the request with this id."""
    if isinstance(result, AdminFault):
        fault = admin.Fault(result.code, str(result))
        return _encoder.encode(admin.Reply(version=admin.VERSION, id=number, error=fault))
    encoded = msgspec.Raw(_encoder.encode(result))
    packet = _encoder.encode(admin.Reply(version=admin.VERSION, id=number, result=encoded))
    if len(packet) > admin.REPLY_BYTES_MAX:
        too_large = AdminFault("failed", "the answer is too large; ask for a smaller page")
        return encode_reply(number, too_large)
    return packet
