"""Names in a simulation: what clients ask for, and what the order of all messages makes of it.

fold      in the total order, a name is taken only while it is free, and given back by its holder
once      a join, a leave and a will have one place each; a will comes right before its leave
members   in the end the bus lists exactly who is there, and these are connected
"""

from collections.abc import Iterable, Sequence

from sbus.protocol.packets import Message as Packet
from sbus.protocol.packets import parse_server_packet
from sbus.protocol.presence import Member, parse_change, parse_members
from sbus.protocol.presence_keys import PRESENCE
from tests.simulation.clients import Message, SimulatedClient
from tests.simulation.plan import user_of

NAMES = (b"ann", b"ben", b"cid")
WILL_KEYS = (b"a", b"b/x")
LISTED = b"CMSG !/members\0"


def announcements(client: SimulatedClient, name: bytes, will: bytes) -> list[bytes]:
    """All packets that may tell of a name that this client asks for."""
    own = client.own
    member = Member(user_of(own.uid), name, client.number, own.gid, own.pid)
    told = [member.join_message(), member.leave_message("left"), member.leave_message("gave-up")]
    return [*told, *([b"MSG " + will] if will else [])]


def untried(client: SimulatedClient) -> list[bytes]:
    """Names that a client has not asked for; so no two messages are alike."""
    tried = {message.key.rpartition(b"/")[2] for message in client.announced}
    return [name for name in NAMES if name not in tried]


def will_of(client: SimulatedClient, name: bytes, key: bytes) -> bytes:
    return b"%b\0%b, will of %d" % (key, name, client.number)


def members_of(placed: Iterable[Message]) -> set[Member]:
    """Who is there behind all of these."""
    there: dict[bytes, Member] = {}
    before = b""
    for message in placed:
        if message.key.startswith(PRESENCE):
            packet = parse_server_packet(message.packet)
            assert isinstance(packet, Packet)
            change = parse_change(packet)
            if change.reason is None:
                assert message.key not in there, f"{message.packet!r}, and the name is taken"
                there[message.key] = change.member
            else:
                assert there.pop(message.key, None) == change.member, message.packet
                if before.endswith(b", will of %d" % change.member.client):
                    assert change.reason == "left", "who has given a name up leaves no will"
        before = message.packet
    return set(there.values())


def check_names(clients: Sequence[SimulatedClient], placed: Sequence[Message]) -> None:
    """The lists that clients got last agree with the order, and nobody is in it who has gone."""
    there = members_of(placed)
    connected = {it.number for it in clients if not it.has_left and not it.has_ended}
    gone = [member for member in there if member.client not in connected]
    assert not gone, f"nobody was told that {gone} have left"
    for client in clients:
        if client.number in connected and client.listed:
            found, _ = parse_members(client.listed.removeprefix(LISTED))
            assert set(found) == there, f"client {client.number} got another list: {found}"
