"""Patterns that a user chooses to make every match of a few keys take long."""

from collections.abc import Sequence

from sbus.bench.attacks.programs import BOMB, BOMB_PATTERNS, MEMBER_KEY, MEMBER_PATTERNS
from tests.support.bus import Bus
from tests.support.raw_client import RawClient
from tests.support.users import effective_user

KEYS = [b"%b%d" % (BOMB, number) for number in range(400)]
"""Each is matched by every bomb."""
MEMBER_KEYS = [b"%b%d" % (MEMBER_KEY, number) for number in range(400)]
"""The same for `MEMBER_PATTERNS`."""
BOMBS = sorted(BOMB_PATTERNS, key=len)
"""24,025 patterns."""


def connect_as(bus: Bus, uid: int) -> RawClient:
    """A client of this user, which a worker serves."""
    with effective_user(uid):
        client = bus.connect()
    client.whoami()
    return client


def subscribe_to_bombs(clients: Sequence[RawClient]) -> None:
    """Try to subscribe to all bombs, a part of them by each client."""
    for number, pattern in enumerate(BOMBS):
        clients[number % len(clients)].sub(pattern)
    for client in clients:
        client.sync()


def subscribe_to_members(clients: Sequence[RawClient]) -> None:
    """Subscribe each of these clients to the same patterns, which all match the same keys."""
    for client in clients:
        client.control(b"blocking/soft/discard")
        for pattern in MEMBER_PATTERNS:
            client.sub(pattern)
        client.sync()
