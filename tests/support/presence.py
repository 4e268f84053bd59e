"""Clients that take names, and what those who watch them make of it."""

from sbus.protocol.presence import Member, parse_members
from tests.support.raw_client import RawClient

_JOIN = b"CMSG !/join\0"
_LEAVE = b"CMSG !/leave\0"
_MEMBERS = b"CMSG !/members\0"


def join(client: RawClient, name: bytes, will: bytes | None = None) -> str:
    """Ask for a name; the code of the refusal, "" if there is none. The reply is the next packet
    that is no message."""
    client.send(_JOIN + name + (b"" if will is None else b"\0" + will))
    replied, _, fault = _reply(client, _JOIN).partition(b"\0")
    assert replied == name[:64]
    return fault.partition(b" ")[0].decode()


def leave(client: RawClient) -> bytes:
    """Give the name up; what the reply says that it was."""
    client.send(_LEAVE.rstrip(b"\0"))
    return _reply(client, _LEAVE)


def members(client: RawClient, pattern: bytes) -> list[Member]:
    """Everybody who has such a name, however many replies that takes."""
    found: list[Member] = []
    behind = b""
    while True:
        client.send(_MEMBERS + pattern + behind)
        piece, has_more = parse_members(_reply(client, _MEMBERS))
        found += piece
        if not has_more:
            return found
        behind = b"\0%d/%b" % (piece[-1].uid, piece[-1].name)


def _reply(client: RawClient, beginning: bytes) -> bytes:
    while not (packet := client.receive()).startswith(b"CMSG "):
        assert packet
    assert packet.startswith(beginning), packet
    return packet.removeprefix(beginning)
