"""What a history says of presence: see `checks`."""

import re
from collections.abc import Iterator

from tests.history.history import LOST, Connection, History, Message
from tests.history.names import Names, listed_members, tells_of_name

_CHANGE = re.compile(
    rb"MSG !/presence/(\d+)/([^\0]+)\0(join|leave) (\d+) \d+ \d+(?: ([a-z-]+))?", re.DOTALL
)
_ALL = b"!/presence/*/*"


def check_presence(history: History) -> Iterator[str]:
    wills = {packet: it for packet, it in history.messages.items() if _is_will(it)}
    for one in history.connections.values():
        watching = [it for it in one.subscriptions if it.pattern == _ALL]
        if one.order == b"queue" and watching and all(it.ended_at is None for it in watching):
            yield from _check_watcher(one, wills)


def _is_will(message: Message) -> bool:
    return message.is_of_bus and not tells_of_name(message.packet)


def _check_watcher(one: Connection, wills: dict[bytes, Message]) -> Iterator[str]:
    """Within a sequence without losses: what was there at its beginning is unknown. Behind a will
    the leave is due if the client watched before the name was asked for."""
    begun = [one.certain_from(it.sent_at) for it in one.subscriptions if it.pattern == _ALL]
    watched_from = [at for at in begun if at is not None]
    members: dict[tuple[bytes, bytes], bytes] = {}
    gone: set[tuple[bytes, bytes]] = set()
    has_will = False
    for at, packet in one.received:
        if packet.startswith(LOST):
            members, gone, has_will = {}, set(), False
            continue
        packet = packet[packet.index(b" MSG ") + 1 :] if b" MSG " in packet[:130] else packet
        change = _CHANGE.fullmatch(packet)
        is_left = change is not None and change[3] == b"leave" and change[5] != b"gave-up"
        if has_will and not is_left and not packet.startswith(b"CMSG "):
            yield f"client {one.number} received {packet[:60]!r} at {at}, behind a will"
        has_will = packet in wills and any(at < wills[packet].sent_at for at in watched_from)
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


def check_members(history: History) -> Iterator[str]:
    """Nobody has a name who has gone, and all lists at the end are those who have one."""
    if not history.knows_own_places:
        return
    names = Names()
    before = None
    for message in history.placed:
        if tells_of_name(message.packet):
            try:
                names.follow(message.packet)
            except AssertionError as error:
                yield str(error)
        if before is not None and _is_will(before):
            is_left = tells_of_name(message.packet) and message.packet.endswith(b" left")
            if not is_left or message.connection is not before.connection:
                yield f"{before} comes before {message}, which is not its leave"
        before = message
    is_there = {b"%d" % one.number for one in history.connections.values() if not one.has_left}
    for member in names.now:
        if member.client not in is_there:
            yield f"nobody was told that {member} has left"
    ended_at = history.positions("calm")
    for one in history.connections.values():
        if one.listed and ended_at and one.listed[0] > ended_at[0]:
            found = set(listed_members(one.listed[1]))
            if found != names.now:
                yield f"client {one.number} got another list: {found ^ names.now}"
