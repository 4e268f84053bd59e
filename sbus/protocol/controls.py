"""Control keys: all that clients and the bus may send, and the control messages of the bus.

The dot dialect has no control messages (docs/protocol.md, "Control messages" and "Notices").
"""

import re
from enum import Enum
from typing import Final

import msgspec

from sbus.protocol.codes import END_TEXTS
from sbus.protocol.packets import FROM_KEY, encode_control
from sbus.protocol.presence import REQUESTS

WHOAMI: Final = b"!/cred/whoami"
"""A client requests its credentials; the reply has the same key and is the barrier of `sync`."""
ME: Final = b"!/me"
"""A client requests what the bus has of its user, as JSON; the reply has the same key."""
SYNC: Final = b"!/sync"
"""A client requests a reply with the same key and payload, the *token*; it is a barrier, too."""
TOKEN_BYTES_MAX: Final = 64
"""Of a longer token, the reply has the beginning."""
ECHO_ON: Final = b"echo/on"
"""The client receives its own messages too; this is the default."""
ECHO_OFF: Final = b"echo/off"
"""The client does not receive its own messages."""
SENDER_ON: Final = b"sender/on"
"""With each message, the client is told who has published it, and its place in the total order."""
SENDER_OFF: Final = b"sender/off"
"""The client receives messages as they were published; this is the default."""
NOTICES_ON: Final = b"!/notices/on"
"""The client wants notices."""


class Soft(Enum):
    """What happens to a message for a client whose socket is full."""

    QUEUE = "queue"
    DISCARD = "discard"
    BLOCK = "block"
    ERROR = "error"


class Hard(Enum):
    """What happens to a message for a client whose backlog is full."""

    DISCARD = "discard"
    BLOCK = "block"
    ERROR = "error"


class BacklogOrder(Enum):
    """How a backlog is sent: oldest first, newest first, largest first, or oldest first with only
    the newest message of each key."""

    QUEUE = "queue"
    STACK = "stack"
    RANDOM = "random"
    LATEST = "latest"


class FloodControl(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of a client for messages that are delivered to it."""

    soft: Soft = Soft.QUEUE
    hard: Hard = Hard.DISCARD
    order: BacklogOrder = BacklogOrder.QUEUE
    age_ms_max: int = 0
    """For how long a message may wait in the backlog; 0 is no limit."""

    @property
    def may_hold_publishers(self) -> bool:
        """Whether publishers are to be held back in some case."""
        return self.soft is Soft.BLOCK or self.hard is Hard.BLOCK

    @property
    def needs_sorting(self) -> bool:
        """Whether messages are sent in another order than that in which they came or the reverse,
        or some are not sent."""
        return self.order in (BacklogOrder.RANDOM, BacklogOrder.LATEST) or self.age_ms_max > 0

    @property
    def wants_fresh(self) -> bool:
        """Whether a message that waits may be replaced, or become too old."""
        return self.order is BacklogOrder.LATEST or self.age_ms_max > 0


FloodChoice = Soft | Hard | BacklogOrder | int
"""One of them; a number is `age_ms_max`."""
AGE_MS_MAX: Final = 86_400_000

FLOOD_CONTROLS: Final[dict[bytes, FloodChoice]] = {
    **{b"blocking/soft/" + soft.value.encode(): soft for soft in Soft},
    **{b"blocking/hard/" + hard.value.encode(): hard for hard in Hard},
    **{b"order/" + order.value.encode(): order for order in BacklogOrder},
}
"""The choice that each of these control keys makes; the last one counts."""
_AGE = re.compile(rb"age/(0|[1-9][0-9]{0,7})")

CLIENT_CONTROLS: Final = frozenset(
    {
        *(WHOAMI, ME, SYNC, *REQUESTS, ECHO_ON, ECHO_OFF, SENDER_ON, SENDER_OFF, NOTICES_ON),
        *FLOOD_CONTROLS,
    }
)
"""Control keys of clients, besides those with an age; any other is ignored and counted. Payloads
are ignored, but for the token of `SYNC`, and those of requests about names."""


def flood_choice(key: bytes) -> FloodChoice | None:
    """The choice that a control key makes, if it makes one; the last one counts."""
    choice = FLOOD_CONTROLS.get(key)
    if choice is None and (age := _AGE.fullmatch(key)) and int(age[1]) <= AGE_MS_MAX:
        return int(age[1])
    return choice


SENDER_BYTES_MAX: Final = len(encode_control(FROM_KEY, b"")) + 5 * len(b"%d " % (2**64 - 1))
"""What telling the sender takes besides the packet of the message."""
LOST: Final = b"!/lost"
"""Notice: messages for this client were dropped; their number in decimal, or `?`."""
ERROR: Final = b"!/error"
"""Notice: a packet was refused, or the client is about to be disconnected; `CODE text`."""


def whoami_reply(gid: int, uid: int, pid: int) -> bytes:
    """The reply to `WHOAMI`: the kernel's ids in decimal."""
    return encode_control(WHOAMI, b"!/cred/%d/%d/%d" % (gid, uid, pid))


def me_reply(result: bytes) -> bytes:
    """The reply to `ME`: `admin_results.MeResult` as JSON."""
    return encode_control(ME, result)


def sync_reply(token: bytes) -> bytes:
    """The reply to `SYNC` with this payload."""
    return encode_control(SYNC, token[:TOKEN_BYTES_MAX])


def sender_prefix(place: int, client: int, gid: int, uid: int, pid: int) -> bytes:
    """What comes before the packet of a message whose recipient wants to know the sender."""
    return encode_control(FROM_KEY, b"%d %d %d %d %d " % (place, client, gid, uid, pid))


def lost_notice(count: int | None) -> bytes:
    """The notice of `count` lost messages; None if the number is unknown."""
    return encode_control(LOST, b"?" if count is None else b"%d" % count)


def error_notice(code: str, text: str) -> bytes:
    """The notice of a fault: its stable `code`, and a text for people. Lone surrogates, which UTF-8
    cannot encode, are sent as backslash escapes."""
    return encode_control(ERROR, f"{code} {text}".encode(errors="backslashreplace"))


def end_notice(code: str) -> bytes:
    """The notice that the bus ends, for the reason with this code, one of `END_TEXTS`."""
    return error_notice(code, END_TEXTS[code])
