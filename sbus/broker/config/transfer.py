"""New settings on their way to the workers, in a memfd: rules can be megabytes, a packet cannot.

One memfd serves all workers, and those that are forked later. This module does not know what
changed, nor what a worker does about it.
"""

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from sbus.broker.config.settings import BusSettings


class SettingsUpdate(msgspec.Struct, frozen=True):
    """What a worker goes by from now on."""

    settings: BusSettings
    concerning: Mapping[int, bytes] = {}
    """The access rules that concern a client, by its number, as `access.pack` writes them; a client
    that is not here is concerned by none."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SettingsUpdate)


def write_owning_memfd(what: SettingsUpdate) -> int:
    """A new memfd that holds `what`; the caller closes it. Raises OSError."""
    memfd = os.memfd_create("sbus-settings", os.MFD_CLOEXEC)
    try:
        data = memoryview(_encoder.encode(what))
        while data:
            data = data[os.write(memfd, data) :]
    except BaseException:
        os.close(memfd)
        raise
    return memfd


def read_memfd(memfd: int) -> SettingsUpdate:
    """What a memfd holds. Its offset, which several processes share, is left alone."""
    return _decoder.decode(os.pread(memfd, os.fstat(memfd).st_size, 0))
