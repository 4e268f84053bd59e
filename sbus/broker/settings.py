"""What a bus is told when it starts; immutable, and the same in all of its processes.

Knows no defaults of the command line and no listening socket.
"""

import msgspec

from sbus.limits import Limits
from sbus.protocol.controls import FloodControl


class BusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one bus. `workers` is 1 to 64: each is one bit of a message's destinations."""

    workers: int
    dialect: str = "slash"
    limits: Limits = Limits()
    flood_control: FloodControl = FloodControl()
    """How every client begins; it may choose otherwise."""
    admit_uids: frozenset[int] | None = None
    """Users who may connect; None admits whoever the socket's mode lets through."""
    admit_gids: frozenset[int] = frozenset()
    """Groups whose members may connect as well, where `admit_uids` is not None."""
    refuse_descriptors: bool = False
    """Let the kernel refuse packets with descriptors attached, instead of dropping those. Dropping
    the last descriptor of a socket that lingers keeps a worker waiting for it."""
    exit_when_empty: bool = False
    """Stop when the last client has left, after the first came."""
