"""What a client with `sender/on` receives, by docs/protocol.md."""

import re
from typing import NamedTuple

_FROM = re.compile(rb"CMSG !/from\0(\d+) (\d+) (\d+) (\d+) (\d+) (MSG .*)", re.DOTALL)


class SentBy(NamedTuple):
    """A message's place in the total order, and who has published it."""

    place: int
    client: int
    gid: int
    uid: int
    pid: int


def without_sender(packet: bytes) -> tuple[SentBy | None, bytes]:
    """Who has sent a message, if its recipient is told, and its packet as it was published."""
    found = _FROM.fullmatch(packet)
    if found is None:
        assert not packet.startswith(b"CMSG !/from"), packet
        return None, packet
    *numbers, message = found.groups()
    return SentBy(*map(int, numbers)), message
