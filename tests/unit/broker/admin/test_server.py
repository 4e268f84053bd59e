"""A fault in answering ends the connection that it happened on, and nothing else."""

import json
import socket
from pathlib import Path
from typing import cast

import msgspec
import trio

from sbus.broker.admin.server import AdminServer
from sbus.broker.front.administrators import Administrators
from sbus.broker.front.closer import Closer
from sbus.protocol import admin
from sbus.protocol.admin_results import DrainResult
from tests.support.events import logging_to
from tests.unit.broker.front.fake_closer import ClosesAtOnce


async def answer(request: admin.Version) -> msgspec.Struct:
    if request.id == 13:
        raise LookupError("a fault")
    return DrainResult(0)


async def ask(path: str, number: int) -> bytes:
    """What a request of this number is answered; nothing at the end of the connection."""
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        await sock.connect(path)
        await sock.send(json.dumps({"verb": "version", "id": number}).encode())
        return await sock.recv(4096)


async def test_a_fault_ends_one_connection(tmp_path: Path, nursery: trio.Nursery) -> None:
    lines: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path = str(tmp_path / "admin")
        listener.bind(path)
        listener.listen()
        server = AdminServer(
            listener,
            Administrators(()),
            cast(Closer, ClosesAtOnce()),
            {admin.Version: answer},
            {},
            logging_to(lines),
        )
        nursery.start_soon(server.run, trio.CancelScope())
        with trio.fail_after(5):
            assert json.loads(await ask(path, 1))["id"] == 1
            assert await ask(path, 13) == b""
            assert json.loads(await ask(path, 2))["id"] == 2
        nursery.cancel_scope.cancel()
    (line,) = lines
    assert "LookupError('a fault')" in line
