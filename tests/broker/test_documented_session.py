"""The session in docs/protocol.md, played against a real bus as it stands there."""

import os
import re
from pathlib import Path

from tests.support.bus import PROJECT, Bus

STEP = re.compile(r"([AB]) ([<>]) (.*)")
DOCUMENTED_IDS = b"!/cred/100/1000/4711"
END = b"(end)"


def documented_steps(document: Path) -> list[tuple[str, str, bytes]]:
    """Client, direction and packet of every step of the session."""
    chapter = document.read_text().partition("\n## A session, byte by byte\n")[2]
    chapter = chapter.partition("\n## ")[0]
    steps = [match.groups() for match in map(STEP.fullmatch, chapter.splitlines()) if match]
    return [(who, way, text.replace("\\0", "\0").encode()) for who, way, text in steps]


def test_the_session_in_the_protocol_happens(bus: Bus) -> None:
    own_ids = b"!/cred/%d/%d/%d" % (os.getegid(), os.geteuid(), os.getpid())
    steps = documented_steps(PROJECT / "docs/protocol.md")
    assert len(steps) >= 20, "the session was not found"
    with bus.connect() as a, bus.connect() as b:
        clients = {"A": a, "B": b}
        for who, way, packet in steps:
            if way == ">":
                clients[who].send(packet)
            elif packet == END:
                assert clients[who].receive() == b""
            else:
                assert clients[who].receive() == packet.replace(DOCUMENTED_IDS, own_ids)
