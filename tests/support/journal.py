"""The journal's end of its native protocol, with a parser of its own.

A field is either `NAME=VALUE\\n` or `NAME\\n`, 64 bits of length (little-endian), value, `\\n`.
"""

import re
import socket
from pathlib import Path


def parse_entry(datagram: bytes) -> dict[str, bytes]:
    """The fields of an entry; AssertionError where it is none."""
    fields: dict[str, bytes] = {}
    at = 0
    while at < len(datagram):
        line_end = datagram.index(b"\n", at)
        name, equals, value = datagram[at:line_end].partition(b"=")
        if equals:
            at = line_end + 1
        else:
            length = int.from_bytes(datagram[line_end + 1 : line_end + 9], "little")
            value = datagram[line_end + 9 : line_end + 9 + length]
            assert len(value) == length
            at = line_end + 9 + length + 1
            assert datagram[at - 1 : at] == b"\n"
        text = name.decode("ascii")
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", text), text
        fields[text] = value
    return fields


class JournalSocket:
    """Receives entries at `path`."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "journal")
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(self.path)
        self._sock.setblocking(False)

    def entries(self) -> list[dict[str, bytes]]:
        """Those that came since this was last asked."""
        found = []
        while True:
            try:
                found.append(parse_entry(self._sock.recv(1 << 20)))
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._sock.close()
