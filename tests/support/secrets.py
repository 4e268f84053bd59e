"""What tests of secret messages share: keys, and a barrier on inherited connections."""

import os

from sbus.unix.address import parse_address
from tests.support.bus import Bus
from tests.support.inheritance import Inherited
from tests.support.raw_client import WHOAMI

OWN = (b"%d" % os.getegid(), b"%d" % os.geteuid(), b"%d" % os.getpid())
"""The ids of this process, as keys spell them."""


def secret(ids: tuple[bytes, ...], rest: bytes = b"x") -> bytes:
    return b"!/cred/%b/%b/%b/%b" % (*ids, rest)


def address_of(bus: Bus) -> str | bytes:
    return parse_address(bus.address).sockaddr()


def sync(client: Inherited) -> list[bytes]:
    """As `RawClient.sync`."""
    client.send(b"CMSG " + WHOAMI)
    packets = []
    while not (packet := client.receive()).startswith(b"CMSG " + WHOAMI):
        assert packet, "the bus closed the connection"
        packets.append(packet)
    return packets
