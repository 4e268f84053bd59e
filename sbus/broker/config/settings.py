"""What a bus is told when it starts; immutable, and the same in all of its processes.

Knows no defaults of the command line and no listening socket.
"""

from collections.abc import Mapping

import msgspec

from sbus.broker.config.access_policy import Rule
from sbus.limits import Limits, UserLimits
from sbus.protocol.controls import FloodControl


class BusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one bus. `workers` is 1 to 64: each is one bit of a message's destinations."""

    workers: int
    dialect: str = "slash"
    limits: Limits = Limits()
    user_limits: Mapping[int, UserLimits] = {}
    """Of the users, by id, who have others than `limits` gives everybody."""
    rules: tuple[Rule, ...] = ()
    """Access rules; the last one that concerns a case decides it."""
    flood_control: FloodControl = FloodControl()
    """How every client begins; it may choose otherwise."""
    admit_uids: frozenset[int] | None = None
    """Users who may connect; None admits whoever the socket's mode lets through."""
    admit_gids: frozenset[int] = frozenset()
    """Groups whose members may connect as well, where `admit_uids` is not None."""
    refuse_descriptors: bool = False
    """Let the kernel refuse packets with descriptors attached, instead of dropping those. Dropping
    the last descriptor of a socket that lingers keeps a worker waiting for it."""
    log: str = "auto"
    """Where events are logged: `journal`, `stderr`, or `auto`, see `event_log`."""
    exit_when_empty: bool = False
    """Stop when the last client has left, after the first came."""

    def limits_of(self, uid: int) -> UserLimits:
        """What this user may have of the bus."""
        return self.user_limits.get(uid) or self.limits.user
