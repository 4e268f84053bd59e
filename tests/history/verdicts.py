"""The verdict on a packet according to the documents alone, with which fuzzed code is compared.

The codes and what they cost are read from the table in docs/protocol.md; the forms of packets and
what is reserved are regular expressions over the whole packet. Where a packet has several faults,
its size comes first, then its form, then the length of its key, its depth, and what is reserved.
A verdict does not depend on a client's state, such as its room for a pattern.
"""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sbus.limits import Limits
from sbus.protocol.keys import DOT, Dialect
from tests.history.names import PRESENCE, is_name_pattern

PROTOCOL = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
_ROW = re.compile(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \| .* \| (refused|disconnected) \|$", re.M)
_FORM = re.compile(rb"(UNSUB|SUB|MSG|CMSG) ([^\0]*)(?:(\0).*)?", re.DOTALL)
_ID = rb"(?:0|[1-9][0-9]*|)"
_PART = rb"!/cred/%b/%b/%b/" % (_ID, _ID, _ID)
_STARRED = rb"!/cred/(?:%b|\*)/(?:%b|\*)/(?:%b|\*)/" % (_ID, _ID, _ID)
_ORDINARY = rb"(?!!(?:/|\Z))[^/]*"
_SECRET_KEY = re.compile(rb"%b(?:%b|%b/)*%b" % (_PART, _PART, _ORDINARY, _ORDINARY), re.DOTALL)
_SECRET_PATTERN = re.compile(
    rb"%b(?:%b|%b/)*%b" % (_PART, _STARRED, _ORDINARY, _ORDINARY), re.DOTALL
)
_WITH_IDS = re.compile(rb"!/cred/(%b)/(%b)/(%b)/.*" % (_ID, _ID, _ID), re.DOTALL)
_MEANT_SECRET = re.compile(rb"!/cred(?:/.*)?", re.DOTALL)
_RESERVED_SLASH = re.compile(rb"(?:.*/)?!(?:/.*)?", re.DOTALL)


class Verdict(NamedTuple):
    """`word` and `text` (a key or pattern) are empty when the packet has no form."""

    word: bytes
    text: bytes
    code: str
    """What it is guilty of, "" for nothing."""

    @property
    def disconnects(self) -> bool:
        return documented_codes().get(self.code) == "disconnected"


class ReceiptRequest(NamedTuple):
    """A message with a receipt."""

    token: bytes
    message: bytes
    """The packet that its recipients get."""


@cache
def documented_codes() -> dict[str, str]:
    """Every code of the table, and whether it is "refused" or "disconnected"."""
    rows = _ROW.findall(PROTOCOL.read_text())
    codes = {code: cost for cell, cost in rows for code in re.findall(r"[a-z-]+", cell)}
    assert {"reserved", "empty-packet", "pattern-too-deep"} <= codes.keys(), "the table has changed"
    return codes


def judge(packet: bytes, dialect: Dialect, limits: Limits) -> Verdict:
    """The verdict on a packet that arrived whole."""
    if len(packet) > limits.packet_bytes_max:
        return Verdict(b"", b"", "packet-too-long")
    verdict = judge_form(packet, dialect, limits)
    if not asks_for_receipt(verdict):
        return verdict
    return Verdict(*verdict[:2], _judge_request(receipt_request(packet), dialect, limits))


def asks_for_receipt(verdict: Verdict) -> bool:
    return verdict[:2] == (b"CMSG", b"!/publish")


def receipt_request(packet: bytes) -> ReceiptRequest:
    """What is in a packet that asks for a receipt, whatever is wrong with it."""
    token, _, rest = packet.partition(b"\0")[2].partition(b"\0")
    return ReceiptRequest(token, b"MSG " + rest)


def _judge_request(request: ReceiptRequest, dialect: Dialect, limits: Limits) -> str:
    if not 1 <= len(request.token) <= 64:
        return "bad-token"
    return judge_form(request.message, dialect, limits).code


def judge_form(packet: bytes, dialect: Dialect, limits: Limits) -> Verdict:
    """The verdict but for the packet's size."""
    if not packet:
        return Verdict(b"", b"", "empty-packet")
    form = _FORM.fullmatch(packet)
    if form is None or (dialect is DOT and form[1] == b"CMSG"):
        return Verdict(b"", b"", "unknown-word")
    word, text, nul = form.groups()
    if word == b"MSG" and nul is None:
        return Verdict(word, text, "no-nul")
    if word == b"CMSG":
        return Verdict(word, text, "")
    return Verdict(word, text, judge_text(word == b"MSG", text, dialect, limits))


def judge_text(is_key: bool, text: bytes, dialect: Dialect, limits: Limits) -> str:
    """The code of what is wrong with a key or pattern, "" for nothing."""
    what = "key" if is_key else "pattern"
    bytes_max = limits.key_bytes_max if is_key else limits.pattern_bytes_max
    segments_max = limits.key_segments_max if is_key else limits.pattern_segments_max
    if len(text) > bytes_max:
        return f"{what}-too-long"
    if len(text.split(dialect.separator)) > segments_max:
        return f"{what}-too-deep"
    if not is_reserved(text, dialect):
        return ""
    if dialect is DOT:
        return "reserved"
    if is_key:
        return "" if _SECRET_KEY.fullmatch(text) else "reserved"
    if text.startswith(PRESENCE):
        return "" if is_name_pattern(text.removeprefix(PRESENCE)) else "bad-name"
    if not _MEANT_SECRET.fullmatch(text):
        return "reserved"
    if not _WITH_IDS.fullmatch(text):
        return "bad-secret-pattern"
    return "" if _SECRET_PATTERN.fullmatch(text) else "reserved"


def is_reserved(text: bytes, dialect: Dialect) -> bool:
    if dialect is DOT:
        return text[:1] == b"!"
    return _RESERVED_SLASH.fullmatch(text) is not None
