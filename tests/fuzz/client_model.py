"""What must come of what one client sends, as docs/protocol.md has it.

It knows what the client has said and chosen; what others publish is for its users to compare.
"""

from collections import Counter

from sbus.limits import Limits
from sbus.protocol.keys import Dialect
from tests.fuzz.access_model import AccessModel
from tests.fuzz.verdicts import Verdict, documented_codes, is_reserved, names_another

Ids = tuple[bytes, bytes, bytes]
"""Group, user and process, as keys spell them."""

NOTICES_ON = b"CMSG !/notices/on"
ERROR = b"CMSG !/error\0"
ME_REPLY = b"CMSG !/me\0"
SETTINGS = {
    b"!/notices/on",
    *(b"sender/on", b"sender/off"),
    *(b"blocking/soft/" + soft for soft in (b"queue", b"discard", b"block", b"error")),
    *(b"blocking/hard/" + hard for hard in (b"discard", b"block", b"error")),
    *(b"order/" + order for order in (b"queue", b"stack", b"random")),
}
"""Control keys that concern notices, clients that do not read, which all do here, and what comes
before a message."""
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
        """Replies and codes that are due in this round."""
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
        if cost is not None:
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
        if text == b"!/cred/whoami":
            self.told.append(b"CMSG !/cred/whoami\0!/cred/" + b"/".join(self.own))
        elif text == b"!/me":
            self.told.append(ME_REPLY)
        elif text == b"!/sync":
            self.told.append(b"CMSG !/sync\0" + packet.partition(b"\0")[2][:64])
        elif text in ECHO:
            self.echo = ECHO[text]
        elif text not in SETTINGS:
            return "unknown-control"
        return ""

    def _publish(self, key: bytes, packet: bytes) -> str:
        if self.access is not None and not self.access.allows("publish", key):
            return "not-allowed"
        self.published.append(packet)
        if not self.echo:
            self.unechoed.add(packet)
        return ""

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
        return [_shown(packet) for packet in told]


def key_of(message: bytes) -> bytes:
    return message[4 : message.index(b"\0")]


def _shown(packet: bytes) -> bytes:
    if packet.startswith(ERROR):
        return packet.removeprefix(ERROR).split(b" ")[0]
    return ME_REPLY if packet.startswith(ME_REPLY) else packet
