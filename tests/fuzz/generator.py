"""Packets that no correct client would send, and some that it would; the same for the same seed.

Most begin as a packet of one of the four words around a key or pattern from a small vocabulary, so
that subscriptions and messages meet. Some then get a size just at, below or above a limit, and some
are damaged.
"""

import random
import re
from collections.abc import Callable, Sequence

from sbus.limits import Limits

WORDS = [b"MSG "] * 8 + [b"SUB "] * 5 + [b"UNSUB "] * 4 + [b"CMSG "] * 3
SEGMENTS = [
    *(b"a", b"a", b"b", b"c", b"ab", b"abc", b"", b"*", b"a*", b"ab*", b"**", b"*b", b"a*b"),
    *(b"!x", b"x!", b"!*", b"\xff", b"\n", b" ", b"SUB ", b"a.b", b"a/b", b"0", b"-1", b"\x80*"),
]
RESERVED = [
    *(b"!", b"!/", b"/!", b"a/!", b"a/!/b", b"!/!", b"!.a", b"!a", b"!/lost", b"!/error", b"!/*"),
    *(b"!/cred/1/2/3/a", b"!/cred////a", b"!/cred/1//3/", b"!/cred/*/2/3/a", b"!/cred/01/2/3/"),
    *(b"!/cred/-1/2/3/a", b"!/cred/1/2", b"!/cred/99999999999999999999/0/0/", b"!/cred/whoami"),
    *(b"!/cred/1/2/3/!/cred/4/5/6/x", b"!/cred/1/2/3/!/x", b"!/cred", b"!/notices/on"),
]
TOKENS = [
    *(b"t", b"t", b"token", b"1", b" ", b"\xff\n", b"MSG a", b"x" * 64, b"?", b"refused reserved"),
    *(b"", b"x" * 65),
]
"""Of messages with receipts; the last two are no tokens."""
CONTROLS = [
    *(b"!/cred/whoami", b"!/sync", b"!/sync", b"!/notices/on", b"!/notices/off", b"echo/"),
    *(b"echo/on", b"echo/off", b"sender/on", b"sender/off"),
    *(b"blocking/soft/queue", b"blocking/soft/discard", b"blocking/soft/block"),
    *(b"blocking/soft/error", b"blocking/hard/discard", b"blocking/hard/block"),
    *(b"blocking/hard/error", b"order/queue", b"order/stack", b"order/random", b"order", b""),
    *(b"age/0", b"age/86400000", b"age/86400001", b"age/01", b"age/-1", b"age/", b"age"),
]
NAMES = [
    *(b"a", b"a", b"ab", b"ab", b"b", b"a-1", b"a.b:c@d+e_f", b"x" * 64),
    *(b"x" * 65, b"", b"a b", b"a/b", b"a*", b"\xff", b"!"),
]
"""The last ones are no names."""
NAME_PATTERNS = [
    *(b"*/*", b"*/*", b"*/a*", b"*/ab", b"1000/*", b"70001/a", b"70002/*", b"70003/a*"),
    *(b"", b"*", b"*/", b"01/a", b"*/a*b", b"*/a/b", b"a/b"),
]
PAYLOADS = [b"", b"", b"x", b"\0", b"\0\0x", b"MSG a\0b", b"\xff" * 40, b"0123456789" * 30]
FIRST_WORDS = [b"MSG", b"SUB", b"UNSUB", b"CMSG", b"msg ", b"SUB\t", b"MSG  ", b"CSUB ", b" MSG "]
_AGE = re.compile(rb"CMSG age/([1-9][0-9]*)")
_AGE_MS_MIN = 100_000
"""With less, what is lost would depend on the speed of the machine."""
_AGE_MS_MAX = 86_400_000
RECENT_TEXTS = 4
"""Keys and patterns that are likely to be used again, so that what was said twice is taken back."""


class PacketMaker:
    """A row of packets, determined by `seed`; `limits` says where the boundaries are.

    Makers that share `recent` use each other's keys and patterns. With `has_ages`, clients choose
    ages; then messages may wait in their backlogs, because they get no large buffers. In the slash
    dialect, clients also take names and watch those of others.
    """

    def __init__(
        self,
        seed: int,
        separator: bytes,
        limits: Limits,
        reserved: Sequence[bytes] = RESERVED,
        controls: Sequence[bytes] = CONTROLS,
        recent: list[bytes] | None = None,
        *,
        has_ages: bool = False,
    ) -> None:
        self._chance = random.Random(seed)
        self._separator = separator
        self._limits = limits
        self._reserved = reserved
        self._controls = controls
        self._has_ages = has_ages
        self._last = b""
        self._recent = [b""] * RECENT_TEXTS if recent is None else recent
        self._damages: list[Callable[[bytes], bytes]] = [
            self._truncate,
            self._insert_nul,
            self._flip_case,
            self._flip_bit,
            self._cut_out,
            self._repeat,
            self._splice,
            self._append,
        ]

    def packet(self) -> bytes:
        """The next packet; may be empty, and larger than the limit by some bytes."""
        draw = self._chance.random()
        if draw < 0.01:
            packet = self._chance.randbytes(int(40 * self._chance.random()))
        elif draw < 0.015:
            packet = self._chance.choice(FIRST_WORDS) + self._text()
        else:
            packet = self._well_formed()
        if self._chance.random() < 0.08:
            packet = self._chance.choice(self._damages)(packet)
        if self._chance.random() < 0.004:
            packet = self._of_limit_size(packet)
        self._last = packet
        age = _AGE.match(packet)
        ms_min = _AGE_MS_MIN if self._has_ages else _AGE_MS_MAX + 1
        return b"CMSG age/0" if age and int(age[1]) < ms_min else packet

    # -- packets ---------------------------------------------------------------------------------
    def _well_formed(self) -> bytes:
        choice = self._chance.choice
        word = choice(WORDS)
        if word == b"CMSG " and self._chance.random() < 0.7:
            return self._with_receipt() if self._chance.random() < 0.5 else self._about_names()
        if word == b"CMSG ":
            text = choice(self._controls)
        elif self._chance.random() < 0.06:
            text = choice(self._reserved)
        elif self._chance.random() < 0.02:
            text = b"!/presence/" + choice(NAME_PATTERNS)
        else:
            text = self._text()
        if word == b"MSG " or self._chance.random() < 0.1:
            return b"%b%b\0%b" % (word, text, choice(PAYLOADS))
        return word + text

    def _with_receipt(self) -> bytes:
        choice = self._chance.choice
        text = choice(self._reserved) if self._chance.random() < 0.2 else self._text()
        fields = [choice(TOKENS), text, choice(PAYLOADS)]
        if self._chance.random() < 0.02:
            fields.pop()
        return b"\0".join([b"CMSG !/publish", *fields])

    def _about_names(self) -> bytes:
        choice, draw = self._chance.choice, self._chance.random()
        if draw < 0.3:
            return b"CMSG !/leave"
        if draw < 0.5:
            behind = [b"70002/a"] * (self._chance.random() < 0.3)
            return b"\0".join([b"CMSG !/members", choice(NAME_PATTERNS), *behind])
        fields = [b"CMSG !/join", choice(NAMES)]
        if draw < 0.8:
            text = choice(self._reserved) if self._chance.random() < 0.1 else self._text()
            fields += [text, choice(PAYLOADS)]
        if self._chance.random() < 0.03:
            fields.pop()
        return b"\0".join(fields)

    def _text(self) -> bytes:
        """A key or pattern, which need not be one that the bus accepts."""
        draw = self._chance.random()
        if draw < 0.015:
            return self._of_limit_length()
        if draw < 0.03:
            return self._of_limit_depth()
        at = int(len(self._recent) * self._chance.random())
        if draw < 0.4:
            return self._recent[at]
        count = int(4 * self._chance.random())
        text = self._separator.join([self._chance.choice(SEGMENTS) for _ in range(count + 1)])
        self._recent[at] = text
        return text

    def _of_limit_length(self) -> bytes:
        size = self._near(self._limits.key_bytes_max)
        unit = self._chance.choice(
            [b"a", b"ab*", b"*", b"!", b"abcdefghijklmnop" + self._separator]
        )
        return (unit * (size // len(unit) + 1))[:size]

    def _of_limit_depth(self) -> bytes:
        depth = self._near(self._limits.key_segments_max)
        segment = self._chance.choice([b"", b"a", b"*", b"a*", b"!"])
        return self._separator.join([segment] * depth)

    def _of_limit_size(self, packet: bytes) -> bytes:
        return packet + bytes(max(0, self._near(self._limits.packet_bytes_max) - len(packet)))

    def _near(self, limit: int) -> int:
        return limit + self._chance.choice([-1, 0, 0, 1, 1, 2, limit])

    # -- damages ---------------------------------------------------------------------------------
    def _somewhere(self, packet: bytes) -> int:
        return self._chance.randint(0, len(packet))

    def _truncate(self, packet: bytes) -> bytes:
        return packet[: self._somewhere(packet)]

    def _insert_nul(self, packet: bytes) -> bytes:
        at = self._somewhere(packet)
        return packet[:at] + b"\0" + packet[at:]

    def _flip_case(self, packet: bytes) -> bytes:
        at = self._somewhere(packet)
        return packet[:at].swapcase() + packet[at:]

    def _flip_bit(self, packet: bytes) -> bytes:
        at = self._somewhere(packet)
        return (
            packet[:at]
            + bytes(byte ^ 1 << self._chance.randrange(8) for byte in packet[at : at + 1])
            + packet[at + 1 :]
        )

    def _cut_out(self, packet: bytes) -> bytes:
        at = self._somewhere(packet)
        return packet[:at] + packet[at + self._chance.randint(1, 4) :]

    def _repeat(self, packet: bytes) -> bytes:
        at = self._somewhere(packet)
        return packet[:at] * self._chance.randint(1, 3) + packet[at:]

    def _splice(self, packet: bytes) -> bytes:
        return packet[: self._somewhere(packet)] + self._last[self._somewhere(self._last) :]

    def _append(self, packet: bytes) -> bytes:
        return packet + self._chance.randbytes(self._chance.randint(1, 20))
