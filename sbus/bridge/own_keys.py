"""The keys and the name that bridges use themselves, and which keys may cross."""

from typing import Final

from sbus.protocol.keys import SLASH, is_reserved

NAME: Final = "bridge"
"""Of the member that publishes on the bridge's own bus; others have a `:` and more behind it."""
OWN_KEYS: Final = b"bridge/"
LOST_KEY: Final = b"bridge/lost/"
"""And the channel: tells of a gap, in its place."""
FROM_KEY: Final = b"bridge/from/"
"""And the channel: tells of the message that follows."""
STATUS_KEY: Final = b"bridge/status"
"""Of requests to the bridge, behind the `!/cred/GID/UID/PID/` of its process, so that nobody else
receives or answers them."""


def may_cross(key: bytes) -> bool:
    """Whether a key is neither reserved, nor one of the bridges' own."""
    return not key.startswith(OWN_KEYS) and not is_reserved(key, SLASH)
