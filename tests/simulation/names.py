"""Names in a simulation: what clients ask for, and what the bus may publish of it."""

from sbus.protocol.presence import Member
from tests.simulation.clients import SimulatedClient
from tests.simulation.plan import user_of

NAMES = (b"ann", b"ben", b"cid")
WILL_KEYS = (b"a", b"b/x")


def announcements(client: SimulatedClient, name: bytes, will: bytes) -> list[bytes]:
    """All packets that may tell of a name that this client asks for."""
    own = client.own
    member = Member(user_of(own.uid), name, client.number, own.gid, own.pid)
    told = [member.join_message(), member.leave_message("left"), member.leave_message("gave-up")]
    return [*told, *([b"MSG " + will] if will else [])]


def untried(client: SimulatedClient) -> list[bytes]:
    """Names that a client has not asked for; so no two messages are alike."""
    return [name for name in NAMES if name not in client.names]


def will_of(client: SimulatedClient, name: bytes, key: bytes) -> bytes:
    return b"%b\0%b, will of %d" % (key, name, client.number)
