"""Standard output without a buffer: a reader gets each write at once."""

import os

import msgspec

from sbus.unix.standard_streams import OUTPUT


def write(data: bytes) -> None:
    """Write all of it."""
    left = memoryview(data)
    while left:
        left = left[os.write(OUTPUT, left) :]


def write_line(text: str) -> None:
    """Write a text and a newline."""
    write(text.encode() + b"\n")


def write_json(record: object) -> None:
    """Write a struct, or a dict, as one line in ASCII, which is safe on a terminal as well."""
    import json  # most verbs start without it

    write_line(json.dumps(msgspec.to_builtins(record)))
