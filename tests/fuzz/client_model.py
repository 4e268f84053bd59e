"""What must come of what one client sends, as docs/protocol.md has it.

It knows what the client has said and chosen; what others publish is for its users to compare.
"""

import re
from collections import Counter
from collections.abc import Callable

from sbus.limits import Limits
from sbus.protocol.keys import Dialect
from tests.fuzz.access_model import AccessModel
from tests.history.matching import Ids, names_another
from tests.history.names import (
    JOIN,
    LEAVE,
    MEMBERS,
    NAME_BYTES,
    WILL_BYTES_MAX,
    Member,
    Members,
    Names,
    Question,
    check_list,
    is_name,
    is_name_pattern,
    name_key,
    tells_of_name,
)
from tests.history.verdicts import (
    Verdict,
    asks_for_receipt,
    documented_codes,
    is_reserved,
    judge_text,
    receipt_request,
)

NOTICES_ON = b"CMSG !/notices/on"
ERROR = b"CMSG !/error\0"
ME_REPLY = b"CMSG !/me\0"
MEMBERS_REPLY = b"CMSG !/members\0"
REFUSED = re.compile(
    rb"(CMSG (?:!/receipt\0[^\0]*\0refused|!/join\0[^\0]*\0|!/members\0refused) ?[a-z-]+) .*",
    re.DOTALL,
)
"""A reply that says why, up to the code."""
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
    """A client with these ids, which has turned notices on. `members` are those of its bus."""

    def __init__(
        self,
        dialect: Dialect,
        limits: Limits,
        own: Ids,
        members: Members,
        access: AccessModel | None = None,
    ) -> None:
        self._dialect = dialect
        self._limits = limits
        self._members = members
        self.number = 0
        """Of its connection, which has to be known before it takes a name."""
        self.member: Member | None = None
        self.will = b""
        self.farewell: list[bytes] = []
        """The messages that are published as it goes: its will, if any, and that it has left."""
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
        self.questions: list[Question] = []
        """Of which the answers are due, in their order."""
        self.unsettled: set[bytes] = set()
        """Keys of names for which it has asked, or that it has given up, in this round."""
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
            beginning = _refusal(verdict, packet) if cost == "refused" else b""
            self.told.append(beginning + code.encode())
        if code:
            self.counts[code] += 1
        if cost == "disconnected":
            self.code = code
            self.depart(code)

    def costs_connection(self, verdict: Verdict, packet: bytes) -> bool:
        """Whether the client is disconnected for a packet with this verdict."""
        if verdict.code:
            return verdict.disconnects
        if verdict[:2] == (b"CMSG", JOIN):
            return documented_codes().get(self._judge_join(_payload(packet))) == "disconnected"
        return verdict.word in (b"SUB", b"UNSUB") and self._names_another(verdict.text)

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
            self.told.append(b"CMSG !/sync\0" + _payload(packet)[:64])
        elif text == JOIN:
            return self._join(_payload(packet))
        elif text == LEAVE:
            self._leave()
        elif text == MEMBERS:
            return self._ask_for_members(_payload(packet))
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

    # -- names ---------------------------------------------------------------------------------
    def concerned_name(self, verdict: Verdict, packet: bytes) -> bytes | None:
        """The key of the name that this packet is about, or whose client it disconnects."""
        is_join = not verdict.code and verdict[:2] == (b"CMSG", JOIN)
        if self.member is None and is_join:
            name = _payload(packet).partition(b"\0")[0]
            return name_key(self.own[1], name) if is_name(name) else None
        is_leave = not verdict.code and verdict[:2] == (b"CMSG", LEAVE)
        if self.member and (is_leave or self.costs_connection(verdict, packet)):
            return self.member.key
        return None

    def _judge_join(self, payload: bytes) -> str:
        """Why a client does not get a name, "" if it does."""
        name, has_will, will = payload.partition(b"\0")
        if not is_name(name):
            return "bad-name"
        if has_will and (b"\0" not in will or len(will) > WILL_BYTES_MAX):
            return "bad-will"
        if self.member is not None:
            return "" if (name, will) == (self.member.name, self.will) else "has-name"
        if will:
            key = will.partition(b"\0")[0]
            if code := judge_text(True, key, self._dialect, self._limits):
                return code
            if self.access is not None and not self.access.allows("publish", key):
                return "not-allowed"
        if self._room_bytes < NAME_BYTES + len(name) + len(will):
            return "too-many-patterns"
        return "name-taken" if name_key(self.own[1], name) in self._members else ""

    def _join(self, payload: bytes) -> str:
        if code := self._judge_join(payload):
            return code
        name, _, will = payload.partition(b"\0")
        self.told.append(b"CMSG !/join\0" + name)
        if self.member is None:
            gid, uid, pid = self.own
            self.member, self.will = Member(uid, name, b"%d" % self.number, gid, pid), will
            self._members[self.member.key] = self.member
            self._room_bytes -= NAME_BYTES + len(name) + len(will)
            self.published.append(self.member.joins())
        return ""

    def _leave(self) -> None:
        self.told.append(b"CMSG !/leave\0" + (self.member.name if self.member else b""))
        self._give_back(b"gave-up")

    def depart(self, reason: str) -> None:
        """The client goes, for this reason."""
        before = len(self.published)
        if self.will:
            self.published.append(b"MSG " + self.will)
        self._give_back(reason.encode())
        self.farewell = self.published[before:]

    def _give_back(self, reason: bytes) -> None:
        if self.member is not None:
            self.published.append(self.member.leaves(reason))
            self._room_bytes += NAME_BYTES + len(self.member.name) + len(self.will)
            del self._members[self.member.key]
            self.member, self.will = None, b""

    def _ask_for_members(self, payload: bytes) -> str:
        pattern, _, behind = payload.partition(b"\0")
        if not is_name_pattern(pattern) or (behind and not is_name_pattern(behind)):
            return "bad-name"
        self.told.append(MEMBERS_REPLY)
        self.questions.append(Question(pattern, behind, b"%d" % self.number, self.member))
        return ""

    # -- patterns ------------------------------------------------------------------------------
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
        return [
            it
            for it in self.published
            if tells_of_name(it) or not is_reserved(key_of(it), self._dialect)
        ]

    def shown(self, told: list[bytes]) -> list[bytes]:
        """Control messages that the client received, as `told` has them."""
        return [_shown(packet) for packet in told if not RECEIPT.fullmatch(packet)]

    def check_lists(
        self, told: list[bytes], history: Names, may_see: Callable[[bytes], bool] = lambda _: True
    ) -> int:
        """The lists of members for which it has asked; returns how many."""
        lists = [packet for packet in told if packet.startswith(MEMBERS_REPLY + b"end")]
        for question, reply in zip(self.questions, lists, strict=not self.code):
            check_list(question, reply, history.lasting, history.any_time, may_see)
        return len(lists)

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


def _payload(packet: bytes) -> bytes:
    return packet.partition(b"\0")[2]


def _refusal(verdict: Verdict, packet: bytes) -> bytes:
    """The beginning of what a client is told when this packet is refused, up to the code."""
    if asks_for_receipt(verdict):
        return b"CMSG !/receipt\0%b\0refused " % receipt_request(packet).token
    if verdict[:2] == (b"CMSG", JOIN):
        return b"CMSG !/join\0%b\0" % _payload(packet).partition(b"\0")[0][:64]
    return MEMBERS_REPLY + b"refused " if verdict[:2] == (b"CMSG", MEMBERS) else b""


def _shown(packet: bytes) -> bytes:
    if packet.startswith(ERROR):
        return packet.removeprefix(ERROR).split(b" ")[0]
    if refused := REFUSED.fullmatch(packet):
        return refused[1]
    for reply in (ME_REPLY, MEMBERS_REPLY):
        if packet.startswith(reply):
            return reply
    return packet
