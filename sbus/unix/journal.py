"""The systemd journal, by its native protocol: one entry is one datagram.

A field is `NAME=value` and a newline; if the value contains a newline, it is the name, a newline,
the value's length as 64 bits little-endian, the value and a newline. Source: "Native Journal
Protocol" in systemd's documentation.

Writing never waits: an entry for which the journal has no room is lost.
"""

import os
import socket
import struct
from collections.abc import Mapping

SOCKET_PATH = "/run/systemd/journal/socket"
VALUE_BYTES_MAX = 16 * 1024
"""Of one field; the rest is cut off."""

_LENGTH = struct.Struct("<Q")


def encode_entry(fields: Mapping[str, str | int]) -> bytes:
    """The datagram of an entry. Names are upper-case letters, digits and underscores."""
    return b"".join(_encode_field(name, str(value)) for name, value in fields.items())


def _encode_field(name: str, text: str) -> bytes:
    value = text.encode(errors="backslashreplace")[:VALUE_BYTES_MAX]
    if b"\n" in value:
        return b"%b\n%b%b\n" % (name.encode(), _LENGTH.pack(len(value)), value)
    return b"%b=%b\n" % (name.encode(), value)


class Journal:
    """A socket for writing to the journal; forked processes may use it as well."""

    def __init__(self, path: str = SOCKET_PATH) -> None:
        self._path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.setblocking(False)

    def write(self, fields: Mapping[str, str | int]) -> bool:
        """Write an entry; False when the journal did not take it."""
        try:
            self._sock.sendto(encode_entry(fields), self._path)
        except OSError:
            return False  # it is full, restarting, or not accessible
        return True

    def close(self) -> None:
        self._sock.close()


def is_journal(fd: int, journal_stream: str | None) -> bool:
    """Whether `fd` is connected to the journal, by the value of $JOURNAL_STREAM, which the service
    manager sets: device and inode of the stream, as `DEV:INODE`."""
    if journal_stream is None:
        return False
    try:
        status = os.fstat(fd)
    except OSError:
        return False  # it is closed
    return journal_stream == f"{status.st_dev}:{status.st_ino}"
