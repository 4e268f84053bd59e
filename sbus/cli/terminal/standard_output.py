"""Standard output without a buffer: a reader gets each write at once."""

import os

import msgspec

from sbus.unix.standard_streams import OUTPUT


def write(data: bytes) -> None:
    """Write all of it."""
    left = memoryview(data)
    while left:
        left = left[os.write(OUTPUT, left) :]


def write_json(record: msgspec.Struct) -> None:
    """Write one line in ASCII, which is safe on a terminal as well."""
    import json  # most verbs start without it

    write(json.dumps(msgspec.to_builtins(record)).encode() + b"\n")
