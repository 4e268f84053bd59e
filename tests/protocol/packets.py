r"""Packets as transcripts write them: escapes, and holes for what no text can know.

`\0` is a NUL byte, also before a digit; `\n`, `\t`, `\\`, `\{` and `\xHH` are as elsewhere. A hole
is a name in braces:

    {}                            nothing: `SUB {}` has its space, and an empty pattern
    {k*4097}                      the text, so many times
    {A.cred} {A.gid} {A.uid} {A.pid}   who A is: `!/cred/GID/UID/PID`, and each number
    {A.client}                    the number of A's connection
    {NAME}                        the value of a parameter of the section (`with NAME=VALUE`)

and, in packets that are received only:

    {text}                        one or more bytes without NUL
    {n}                           a decimal number
    {place:1}                     a place in the order, the same wherever it has this number; places
                                  with larger numbers are larger

This module and those that it imports need nothing but the standard library.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

_ESCAPE = re.compile(r"\\(?:(0|n|t|\\|\{)|x([0-9a-fA-F]{2}))|\\|\{([^{}]*)\}|([^\\{]+)|\{")
_PLAIN = {"0": b"\0", "n": b"\n", "t": b"\t", "\\": b"\\", "{": b"{"}
_REPEATED = re.compile(r"(.+)\*(\d+)", re.DOTALL)
_OF_CLIENT = re.compile(r"([A-Z])\.(cred|gid|uid|pid|client)")
_PLACE = re.compile(r"place:(\d+)")
PATTERNS = {"text": rb"[^\0]+", "n": rb"(?:0|[1-9][0-9]*)"}


class TranscriptError(Exception):
    """A text that is no transcript, or one that cannot test what it seems to."""


@dataclass(frozen=True)
class Identity:
    """Who a client is, as the kernel tells the bus; and the number of its connection, if known."""

    gid: int
    uid: int
    pid: int
    client: int | None = None

    def field(self, name: str) -> bytes | None:
        if name == "cred":
            return b"!/cred/%d/%d/%d" % (self.gid, self.uid, self.pid)
        number: int | None = getattr(self, name)
        return None if number is None else b"%d" % number


@dataclass
class Known:
    """What the holes of a section stand for so far."""

    clients: dict[str, Identity] = field(default_factory=dict)
    numbers: dict[str, bytes] = field(default_factory=dict)
    """Of connections, where the bus has told them in a packet, by the client's name."""
    places: dict[int, int] = field(default_factory=dict)

    def of_client(self, name: str, what: str) -> bytes | None:
        if name not in self.clients:
            raise TranscriptError(f"{{{name}.{what}}} before {name} does anything")
        return self.clients[name].field(what) or self.numbers.get(name)


Piece = bytes | str
"""Bytes as they stand, or the name of a hole."""


def parse(text: str, parameters: Mapping[str, str] | None = None) -> list[Piece]:
    """The pieces of a packet; parameters are replaced by what their values are."""
    pieces: list[Piece] = []
    for found in _ESCAPE.finditer(text):
        plain, code, hole, literal = found.groups()
        if plain is not None:
            pieces.append(_PLAIN[plain])
        elif code is not None:
            pieces.append(bytes([int(code, 16)]))
        elif literal is not None:
            pieces.append(literal.encode())
        elif hole is None:
            raise TranscriptError(f"{found[0]!r} means nothing here: {text}")
        elif parameters is not None and hole in parameters:
            pieces += parse(parameters[hole], parameters=None)
        elif not hole:
            continue
        elif repeated := _REPEATED.fullmatch(hole):
            (piece,) = _joined(parse(repeated[1], parameters)) or [b""]
            if not isinstance(piece, bytes):
                raise TranscriptError(f"only bytes can be repeated: {text}")
            pieces.append(piece * int(repeated[2]))
        elif hole in PATTERNS or _OF_CLIENT.fullmatch(hole) or _PLACE.fullmatch(hole):
            pieces.append(hole)
        else:
            raise TranscriptError(f"there is no hole {{{hole}}}: {text}")
    return _joined(pieces)


def _joined(pieces: list[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if joined and isinstance(piece, bytes) and isinstance(joined[-1], bytes):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def to_send(pieces: list[Piece], known: Known) -> bytes:
    """The packet that these pieces are now."""
    packet = b""
    for piece in pieces:
        if isinstance(piece, bytes):
            packet += piece
        elif (found := _OF_CLIENT.fullmatch(piece)) and (own := known.of_client(*found.groups())):
            packet += own
        else:
            raise TranscriptError(f"{{{piece}}} cannot be sent")
    return packet


def mismatch(pieces: list[Piece], packet: bytes, known: Known) -> str:
    """Why a packet is not the expected one; "" if it is, and then `known` has what it tells."""
    pattern, asks = b"", []
    for piece in pieces:
        if isinstance(piece, bytes):
            pattern += re.escape(piece)
        elif piece in PATTERNS:
            pattern += PATTERNS[piece]
        elif (found := _OF_CLIENT.fullmatch(piece)) and (own := known.of_client(*found.groups())):
            pattern += re.escape(own)
        else:
            asks.append(piece)
            pattern += b"([0-9]+)"
    matched = re.fullmatch(pattern, packet)
    if not matched:
        return f"received {shown(packet)}"
    for hole, number in zip(asks, matched.groups(), strict=True):
        if why := _learn(hole, number, known):
            return f"received {shown(packet)}, where {why}"
    return ""


def _learn(hole: str, number: bytes, known: Known) -> str:
    """Why this number cannot stand for the hole; "" if it can, and does from now on."""
    if found := _OF_CLIENT.fullmatch(hole):
        if number in {it for name, it in known.numbers.items() if name != found[1]}:
            return f"{found[1]} has the number of another client"
        if known.numbers.setdefault(found[1], number) != number:
            return f"{found[1]} has another number than before"
        return ""
    place = int(hole.partition(":")[2])
    value = known.places.setdefault(place, int(number))
    if value != int(number):
        return f"place {place} was {value} before"
    in_order = [known.places[key] for key in sorted(known.places)]
    if any(one >= other for one, other in pairwise(in_order)):
        return f"the places are in another order: {known.places}"
    return ""


def shown(packet: bytes) -> str:
    """A packet as a transcript would write it, cut where it is long."""
    text = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b"\\{" else _escaped(byte)
        for byte in packet[:150]
    )
    return text + (f"… ({len(packet)} bytes)" if len(packet) > 150 else "")


def _escaped(byte: int) -> str:
    return {0: "\\0", 10: "\\n", 9: "\\t", 92: "\\\\", 123: "\\{"}.get(byte, f"\\x{byte:02x}")
