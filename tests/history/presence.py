"""Names, joins, leaves and wills in a history: see `checks`."""

from collections.abc import Iterator

from tests.history.history import LOST, Connection, History, Message
from tests.history.names import Members, Names, listed_members, parse_change, tells_of_name
from tests.support.senders import without_sender

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
    members: Members = {}
    gone: set[bytes] = set()
    has_will = False
    for at, packet in one.received:
        if packet.startswith(LOST):
            members, gone, has_will = {}, set(), False
            continue
        _, packet = without_sender(packet)
        change = parse_change(packet)
        is_left = change is not None and change.reason not in (b"", b"gave-up")
        if has_will and not is_left and not packet.startswith(b"CMSG "):
            yield f"client {one.number} received {packet[:60]!r} at {at}, behind a will"
        has_will = packet in wills and any(at < wills[packet].sent_at for at in watched_from)
        if change is None:
            continue
        member, key = change.member, change.member.key
        if not change.reason:
            if key in members:
                yield f"client {one.number} received at {at} that {key!r} joined twice"
            members[key] = member
            gone.discard(key)
        elif key in gone or members.pop(key, member) != member:
            yield f"client {one.number} received at {at} that {key!r} left, who was not there"
        else:
            gone.add(key)


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
