"""`sbusctl pub`: where payloads come from, and when they have arrived.

A payload that is too long for any packet is read just far enough to be refused for it, so neither
an endless line nor an endless file fills the memory. Knows neither options nor exit statuses.
"""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from sbus.client.blocking import Connection
from sbus.client.link import PACKET_BYTES_MAX
from sbus.protocol.packets import Message
from sbus.unix.standard_streams import INPUT

STANDARD_INPUT = "-"


def standard_input() -> BinaryIO:
    """Standard input, whatever it is."""
    return open(INPUT, "rb", closefd=False)


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines, as they come, without the newline that ends each; the last may lack it."""
    while line := stream.readline(PACKET_BYTES_MAX + 1):
        yield line.removesuffix(b"\n")


def contents(paths: Iterable[str]) -> Iterator[bytes]:
    """What each file holds; `-` is standard input to its end."""
    for path in paths:
        if path == STANDARD_INPUT:
            yield standard_input().read(PACKET_BYTES_MAX + 1)
        else:
            with open(path, "rb") as file:
                yield file.read(PACKET_BYTES_MAX + 1)


def publish_all(bus: Connection[Message], key: bytes, payloads: Iterable[bytes]) -> None:
    """Publish each payload; return when the bus has processed the last.

    Raises PacketRefused when it refused one; a key that it does not accept, after the first.
    """
    for number, payload in enumerate(payloads):
        bus.publish(key, payload)
        if number == 0:
            bus.sync()
    bus.sync()
