"""What must come of what one client sends, as docs/protocol.md has it.

It knows what the client has said and chosen; what others publish is for its users to compare.
"""

import re
from collections import Counter

from sbus.limits import Limits
from sbus.protocol.keys import Dialect
from tests.fuzz.access_model import AccessModel
from tests.fuzz.verdicts import (
    Verdict,
    asks_for_receipt,
    documented_codes,
    is_reserved,
    names_another,
    receipt_request,
)

Ids = tuple[bytes, bytes, bytes]
"""Group, user and process, as keys spell them."""

NOTICES_ON = b"CMSG !/notices/on"
ERROR = b"CMSG !/error\0"
ME_REPLY = b"CMSG !/me\0"
REFUSED_RECEIPT = re.compile(rb"(CMSG !/receipt\0[^\0]*\0refused [a-z-]+) .*", re.DOTALL)
RECEIPT = re.compile(rb"CMSG !/receipt\0([^\0]*)\0(\d+) (\d+) (\d+)")
SETTINGS = {
    b"!/notices/on",
    *(b"sender/on", b"sender/off"),
    *(b"blocking/soft/" + soft for soft in (b"queue", b"discard", b"block", b"error")),
    *(b"blocking/hard/" + hard for hard in (b"discard", b"block", b"error")),
    *(b"order/" + order for order in (b"queue", b"stack", b"random")),
}
"""Control keys that concern notices, clients that do not read, which all do here, and what comes
before a message."""
AGE = re.compile(rb"age/(0|[1-9][0-9]{0,7})")
AGE_MS_MAX = 86_400_000
ECHO = {b"echo/on": True, b"echo/off": False}


class ClientModel:
    """A client with these ids, which has turned notices on."""

    def __init__(
        self, dialect: Dialect, limits: Limits, own: Ids, access: AccessModel | None = None
    ) -> None:
        self._dialect = dialect
        self.own = own
        self.access = access
        self._room_bytes = limits.client_subscription_bytes_max
        self.patterns: Counter[bytes] = Counter()
        self.code = ""
        """Why it must be disconnected, if it must."""
        self.echo = True
        self.begin_round()

    def begin_round(self) -> None:
        self.told: list[bytes] = []
        """Replies and codes that are due in this round, but for receipts of what was published."""
        self.receipts: dict[bytes, list[bytes]] = {}
        """By token, the messages of which these are due, in the order in which they were sent."""
        self.published: list[bytes] = []
        self.unechoed: set[bytes] = set()
        """Of those, the messages that it must not receive itself."""
        self.counts: Counter[str] = Counter()
        self.any_pattern = set(self.patterns)
        """All patterns that it had at some time of this round."""
        self.lasting = set(self.patterns)
        """Those that it had all the time."""

    def note(self, packet: bytes, verdict: Verdict) -> None:
        """The client has sent this packet."""
        code = verdict.code or self._apply(verdict, packet)
        cost = documented_codes().get(code)
        if cost == "refused" and asks_for_receipt(verdict):
            token = receipt_request(packet).token
            self.told.append(b"CMSG !/receipt\0%b\0refused %b" % (token, code.encode()))
        elif cost is not None:
            self.told.append(code.encode())
        if cost == "disconnected":
            self.code = code
        if code:
            self.counts[code] += 1

    def costs_connection(self, verdict: Verdict) -> bool:
        """Whether the client is disconnected for a packet with this verdict."""
        return verdict.disconnects or (
            not verdict.code
            and verdict.word in (b"SUB", b"UNSUB")
            and self._names_another(verdict.text)
        )

    def _apply(self, verdict: Verdict, packet: bytes) -> str:
        """What an acceptable packet does; returns what it is counted as, "" for nothing."""
        word, text, _ = verdict
        if word == b"MSG":
            return self._publish(text, packet)
        if word != b"CMSG":
            if self._names_another(text):
                return "not-yours"
            return self._subscribe(text) if word == b"SUB" else self._unsubscribe(text)
        if asks_for_receipt(verdict):
            return self._publish_with_receipt(packet)
        if text == b"!/cred/whoami":
            self.told.append(b"CMSG !/cred/whoami\0!/cred/" + b"/".join(self.own))
        elif text == b"!/me":
            self.told.append(ME_REPLY)
        elif text == b"!/sync":
            self.told.append(b"CMSG !/sync\0" + packet.partition(b"\0")[2][:64])
        elif text in ECHO:
            self.echo = ECHO[text]
        elif text not in SETTINGS and not is_age(text):
            return "unknown-control"
        return ""

    def _publish(self, key: bytes, packet: bytes) -> str:
        if self.access is not None and not self.access.allows("publish", key):
            return "not-allowed"
        self.published.append(packet)
        if not self.echo:
            self.unechoed.add(packet)
        return ""

    def _publish_with_receipt(self, packet: bytes) -> str:
        token, message = receipt_request(packet)
        code = self._publish(key_of(message), message)
        if not code:
            self.receipts.setdefault(token, []).append(message)
        return code

    def _subscribe(self, pattern: bytes) -> str:
        if self.access is not None and self.access.refuses_pattern(pattern):
            return "not-allowed"
        if self._charge(pattern) > self._room_bytes:
            return "too-many-patterns"
        self._room_bytes -= self._charge(pattern)
        self.patterns[pattern] += 1
        self.any_pattern.add(pattern)
        return ""

    def _unsubscribe(self, pattern: bytes) -> str:
        if pattern not in self.patterns:
            return "unknown-unsubscription"
        self._room_bytes += self._charge(pattern)
        self.patterns[pattern] -= 1
        if not self.patterns[pattern]:
            del self.patterns[pattern]
            self.lasting.discard(pattern)
        return ""

    def _charge(self, pattern: bytes) -> int:
        return len(pattern) + 64 * len(pattern.split(self._dialect.separator))

    def _names_another(self, pattern: bytes) -> bool:
        return self._dialect.has_control_messages and names_another(pattern, self.own)

    def published_openly(self) -> list[bytes]:
        """What this round's witnesses of everything see: no secret messages."""
        return [it for it in self.published if not is_reserved(key_of(it), self._dialect)]

    def shown(self, told: list[bytes]) -> list[bytes]:
        """Control messages that the client received, as `told` has them."""
        return [_shown(packet) for packet in told if not RECEIPT.fullmatch(packet)]

    def check_receipts(self, told: list[bytes]) -> dict[bytes, list[int]]:
        """Each message that has its place got one receipt, but for the last ones of a client that
        was disconnected; nobody has lost anything. Returns by token how many clients have it."""
        found: dict[bytes, list[int]] = {}
        for packet in told:
            if receipt := RECEIPT.fullmatch(packet):
                sent, waiting, lost = map(int, receipt.groups()[1:])
                assert not lost, packet
                found.setdefault(receipt[1], []).append(sent + waiting)
        for token in found.keys() | self.receipts.keys():
            came, due = len(found.get(token, ())), len(self.receipts.get(token, ()))
            assert came == due or (self.code and came < due), f"{came} of {due} receipts: {token!r}"
        return found


def is_age(control: bytes) -> bool:
    """Whether it is a control key that chooses an age."""
    age = AGE.fullmatch(control)
    return age is not None and int(age[1]) <= AGE_MS_MAX


def key_of(message: bytes) -> bytes:
    return message[4 : message.index(b"\0")]


def _shown(packet: bytes) -> bytes:
    if packet.startswith(ERROR):
        return packet.removeprefix(ERROR).split(b" ")[0]
    if refused := REFUSED_RECEIPT.fullmatch(packet):
        return refused[1]
    return ME_REPLY if packet.startswith(ME_REPLY) else packet
