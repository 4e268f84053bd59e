"""The session in docs/admin.md, as it stands there, against a real bus."""

import os
import re
import socket
from pathlib import Path

from sbus.unix.address import SUN_PATH_BYTES, AbstractAddress, admin_address
from tests.support.bus import PROJECT, running_bus
from tests.support.raw_client import RawClient

DOCUMENT = (PROJECT / "docs/admin.md").read_text()
REPLY_BYTES_MAX = 262_144


def test_the_documented_session(tmp_path: Path) -> None:
    """The ids of the client are replaced by those in the document."""
    chapter = DOCUMENT.partition("## A session, byte by byte\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^([<>]) (.*)$", chapter, re.MULTILINE)
    assert [way for way, _ in lines] == [">", "<"] * 6
    with (
        running_bus(tmp_path, workers=1) as bus,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as admin,
        RawClient(bus.address) as client,
    ):
        client.control(b"!/notices/on")
        client.sub(b"lamps/*/state")
        client.sync()
        admin.settimeout(60)
        admin.connect(f"{bus.address}.admin")
        ours = f'"uid":{os.getuid()},"pid":{os.getpid()},"program":"{program()}"'
        for way, packet in lines:
            if way == ">":
                admin.send(packet.encode())
            else:
                reply = admin.recv(REPLY_BYTES_MAX).decode()
                assert reply.replace(ours, '"uid":1000,"pid":4711,"program":"lamps"') == packet
        assert client.receive() == b"CMSG !/error\0kicked make room"
        assert client.receive() == b""


def program() -> str:
    return Path("/proc/self/comm").read_text().removesuffix("\n")


def test_the_documented_derivation() -> None:
    code = DOCUMENT.partition("```python\n")[2].partition("```")[0]
    assert "def admin_name" in code
    names: dict[str, object] = {}
    exec(compile(code, "docs/admin.md", "exec"), names)
    admin_name = names["admin_name"]
    assert callable(admin_name)
    for name in (b"\0bus", b"\0" + bytes(range(107))):
        address = admin_address(AbstractAddress(name.ljust(SUN_PATH_BYTES, b"\0")))
        assert admin_name(name) == address.sockaddr()
