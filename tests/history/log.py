"""The log of one run: a line for each packet, with tabs between

    nanoseconds   of CLOCK_MONOTONIC; the order of the lines counts, not this
    client        the number of the connection in this log; 0 for what no client does
    direction     one of the constants below
    packet        escaped, so that it has neither tabs nor newlines

A packet is written when `send` has taken it or `recv` has returned it. So of two lines the first
one happened first, whichever programs wrote them, as long as they share one file.
"""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

OPENED = "+"
"""A connection. Its packet has the dialect, the client's group, user and process, and the bus's
number for it where that is known."""
SENT = ">"
RECEIVED = "<"
ENDED = "-"
"""The bus has ended the connection, and the client has read everything."""
CLOSED = "x"
"""The client has closed its connection, or one side of it."""
EVENT = "!"
"""Something that was done to the bus, or that it failed to do; see `history`."""
REPORTED = "="
"""Figures of the bus, as JSON, after all clients have read everything."""
LOGGED = "~"
"""A line of the bus's own log."""
ANNOUNCED = "*"
"""What a simulated bus may publish itself when this client asks for a name."""
PLACED = "#"
"""A message that has its place in the total order of a simulated bus; one after the other."""

_NS_BETWEEN = 10_000_000_000


class Entry(NamedTuple):
    ns: int
    client: int
    direction: str
    packet: bytes


class Entries(list[Entry]):
    """A log in memory, of a simulation. So many seconds are between two entries that it is certain
    which of them was the first."""

    def write(self, client: int, direction: str, packet: bytes = b"") -> None:
        self.append(Entry(len(self) * _NS_BETWEEN, client, direction, packet))

    def event(self, text: str) -> None:
        self.write(0, EVENT, text.encode())


class Log:
    """Writes entries. Threads may share it: a line is one write to a buffer that has a lock."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=1 << 20)
        self._connections = 0

    def connection(self) -> int:
        """The number of a new connection."""
        self._connections += 1
        return self._connections

    def write(self, client: int, direction: str, packet: bytes = b"") -> None:
        text = packet.decode("latin-1").encode("unicode_escape")
        self._file.write(
            b"%d\t%d\t%b\t%b\n" % (time.monotonic_ns(), client, direction.encode(), text)
        )

    def event(self, text: str) -> None:
        self.write(0, EVENT, text.encode())

    def close(self) -> None:
        self._file.close()


def read_log(lines: Iterable[bytes]) -> Iterator[Entry]:
    for line in lines:
        ns, client, direction, text = line.rstrip(b"\n").split(b"\t")
        packet = text.decode("unicode_escape").encode("latin-1")
        yield Entry(int(ns), int(client), direction.decode(), packet)
