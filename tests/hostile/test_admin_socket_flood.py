"""Floods of the admin socket by users who may not administer the bus."""

import socket
from pathlib import Path

from sbus.client.admin import AdminConnection
from sbus.protocol import admin
from sbus.protocol.admin_results import VersionResult
from sbus.unix.address import admin_address, parse_address
from tests.support.attacks import storming
from tests.support.bus import bus_of
from tests.support.users import needs_root

pytestmark = needs_root

ATTACKERS = (70_021, 70_022)
FLOOD_SECONDS = 0.5
"""Fills the listen queue many times."""
QUESTIONS = 10


def connect_at_once(address: str) -> None:
    """Connect to the admin socket again and again, without waiting for a place in its queue."""
    sockaddr = admin_address(parse_address(address)).sockaddr()
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.setblocking(False)
            sock.connect(sockaddr)


def test_administrators_are_answered(tmp_path: Path) -> None:
    """At an abstract address, which any user may connect to."""
    options = ("-foa", "/dev/unix/abstract", "--workers=1")
    with (
        bus_of(tmp_path, *options) as bus,
        storming(ATTACKERS, FLOOD_SECONDS, bus.address, connect_at_once),
    ):
        for _ in range(QUESTIONS):
            with AdminConnection(bus.address) as connection:
                connection.ask(admin.Version(), VersionResult)
