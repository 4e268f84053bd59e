"""The settings of a bus: immutable, the same in all of its processes, replaced as a whole.

New settings travel to the workers in a memfd, because rules can take megabytes and a packet cannot.
One memfd serves all workers, and those that are forked later.
"""

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from sbus.broker.config.access_policy import AccessRule
from sbus.bus_options import OPTIONS
from sbus.limits import Limits, UserLimits
from sbus.protocol.controls import FloodControl
from sbus.unix.memfd import make_memfd


class BusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one bus. `workers` is 1 to 64: each is one bit of a message's destinations."""

    workers: int
    placement: str = "load"
    """Which worker serves a client: `load` or `spread`, see `front.placement`."""
    dialect: str = "slash"
    limits: Limits = Limits()
    user_limits: Mapping[int, UserLimits] = {}
    """By user id, for users whose limits differ from those that `limits` gives everybody."""
    rules: tuple[AccessRule, ...] = ()
    """The last rule that applies to a case decides it."""
    flood_control: FloodControl = FloodControl()
    """The choice that every client begins with; the client may change it."""
    admit_uids: frozenset[int] | None = None
    """Users who may connect; None: all that the mode of the socket's file lets connect."""
    admit_gids: frozenset[int] = frozenset()
    """Groups whose members may connect as well, if `admit_uids` is not None."""
    disconnect_descriptors: bool = False
    """Process packets with descriptors attached, without those. Otherwise the kernel refuses such
    packets where it can. Closing what came with them takes time of a worker."""
    log: str = "auto"
    """Where events are logged: `journal`, `stderr` or `auto`, see `broker.events.sinks`."""
    exit_when_empty: bool = False
    """Stop when the last client has left, after the first came."""

    def limits_of(self, uid: int) -> UserLimits:
        return self.user_limits.get(uid) or self.limits.user


OPTION_FIELDS: Final = frozenset(BusSettings.__struct_fields__) & {
    option.name for option in OPTIONS
}
"""Settings that are the values of options of the same names."""


class SettingsUpdate(msgspec.Struct, frozen=True):
    """The settings that a worker applies from now on."""

    settings: BusSettings
    rules_by_client: Mapping[int, bytes] = {}
    """The set of access rules that apply to a client, encoded, by the client's number; to a client
    that is missing here no rule applies."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SettingsUpdate)


def write_owning_memfd(update: SettingsUpdate) -> int:
    """A new memfd that holds `update`; the caller closes it. Raises OSError."""
    return make_memfd("sbus-settings", _encoder.encode(update))


def read_memfd(memfd: int) -> SettingsUpdate:
    """The update in a memfd, whose offset stays as it is: several processes share it."""
    return _decoder.decode(os.pread(memfd, os.fstat(memfd).st_size, 0))
