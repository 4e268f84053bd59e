"""Control keys: every one that clients may send or the server sends, and the server's packets.

This module owns the vocabulary; a key that is not listed here does not exist (PROTOCOL, "Secret
messages", "Flood control" and "Notices"). All of it belongs to the slash dialect, the other has no
control messages.

Does not know what a control key does to a session, nor when a notice is due.
"""

from enum import Enum
from typing import Final

import msgspec

from sbus.protocol.packets import encode_control

WHOAMI: Final = b"!/cred/whoami"
"""Asked by a client, answered with the same key: its credentials, and the barrier of `sync`."""
ME: Final = b"!/me"
"""Asked by a client, answered with the same key: what the bus has of its user, as JSON."""
ECHO_ON: Final = b"echo/on"
"""The client's own messages come back to it, which is how it begins."""
ECHO_OFF: Final = b"echo/off"
"""The client's own messages do not come back to it."""
NOTICES_ON: Final = b"!/notices/on"
"""The client wants to be told what the server did."""


class Soft(Enum):
    """What becomes of a message for a client whose socket is full."""

    QUEUE = "queue"
    DISCARD = "discard"
    BLOCK = "block"
    ERROR = "error"


class Hard(Enum):
    """What becomes of a message for a client whose backlog is full."""

    DISCARD = "discard"
    BLOCK = "block"
    ERROR = "error"


class BacklogOrder(Enum):
    """How a backlog is sent: oldest first, newest first, or largest first."""

    QUEUE = "queue"
    STACK = "stack"
    RANDOM = "random"


class FloodControl(msgspec.Struct, frozen=True, kw_only=True):
    """The three choices of one client, for its own deliveries."""

    soft: Soft = Soft.QUEUE
    hard: Hard = Hard.DISCARD
    order: BacklogOrder = BacklogOrder.QUEUE


FLOOD_CONTROLS: Final[dict[bytes, Soft | Hard | BacklogOrder]] = {
    **{b"blocking/soft/" + soft.value.encode(): soft for soft in Soft},
    **{b"blocking/hard/" + hard.value.encode(): hard for hard in Hard},
    **{b"order/" + order.value.encode(): order for order in BacklogOrder},
}
"""The choice that each of these control keys makes; the last one sent holds."""

CLIENT_CONTROLS: Final = frozenset({WHOAMI, ME, ECHO_ON, ECHO_OFF, NOTICES_ON, *FLOOD_CONTROLS})
"""The control keys a client may send; any other is ignored and counted. Payloads are ignored."""

LOST: Final = b"!/lost"
"""Notice: messages for this client were dropped; how many, in decimal, or `?`."""
ERROR: Final = b"!/error"
"""Notice: a packet was refused, or the client is about to be disconnected; `CODE text`."""


def whoami_reply(gid: int, uid: int, pid: int) -> bytes:
    """The answer to `WHOAMI`: ids as the kernel gave them, in decimal."""
    return encode_control(WHOAMI, b"!/cred/%d/%d/%d" % (gid, uid, pid))


def me_reply(result: bytes) -> bytes:
    """The answer to `ME`: `admin_results.MeResult` as JSON."""
    return encode_control(ME, result)


def lost_notice(count: int | None) -> bytes:
    """The notice of `count` lost messages, None when the number cannot be known."""
    return encode_control(LOST, b"?" if count is None else b"%d" % count)


def error_notice(code: str, text: str) -> bytes:
    """The notice of a fault: its stable `code`, which holds no space, and a text for people.

    What UTF-8 cannot carry (a lone surrogate) goes out as a backslash escape.
    """
    return encode_control(ERROR, f"{code} {text}".encode(errors="backslashreplace"))
