"""What a history says of presence: see `checks`."""

import re
from collections.abc import Iterator

from tests.campaign.history import LOST, Connection, History

_CHANGE = re.compile(
    rb"MSG !/presence/(\d+)/([^\0]+)\0(join|leave) (\d+) \d+ \d+(?: ([a-z-]+))?", re.DOTALL
)
_ALL = b"!/presence/*/*"


def check_presence(history: History) -> Iterator[str]:
    wills = {packet for packet, message in history.messages.items() if message.is_will}
    for one in history.connections.values():
        if one.order == b"queue" and any(it.pattern == _ALL for it in one.subscriptions):
            yield from _check_watcher(one, wills)


def _check_watcher(one: Connection, wills: set[bytes]) -> Iterator[str]:
    """Within a sequence without losses: what was there at its beginning is unknown."""
    members: dict[tuple[bytes, bytes], bytes] = {}
    gone: set[tuple[bytes, bytes]] = set()
    will = b""
    for at, packet in one.received:
        if packet.startswith(LOST):
            members, gone, will = {}, set(), b""
            continue
        packet = packet[packet.index(b" MSG ") + 1 :] if b" MSG " in packet[:130] else packet
        change = _CHANGE.fullmatch(packet)
        is_left = change is not None and change[3] == b"leave" and change[5] != b"gave-up"
        if will and not is_left and not packet.startswith(b"CMSG "):
            yield f"client {one.number} received {packet[:60]!r} at {at}, behind a will"
        will = packet if packet in wills else b""
        if change is None:
            continue
        member, client = (change[1], change[2]), change[4]
        if change[3] == b"join":
            if member in members:
                yield f"client {one.number} received at {at} that {member} joined twice"
            members[member] = client
            gone.discard(member)
        elif member in gone or members.pop(member, client) != client:
            yield f"client {one.number} received at {at} that {member} left, who was not there"
        else:
            gone.add(member)
