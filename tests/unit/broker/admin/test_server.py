"""A fault in answering ends the connection that it happened on, and nothing else."""

import json
import socket
from contextlib import suppress
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


BUG = f"LookupError('a fault') (test_server.py:{answer.__code__.co_firstlineno + 2})"


async def ask(path: str, *numbers: int) -> list[bytes]:
    """What requests of these numbers are answered, each in turn; nothing at the end of the
    connection."""
    answers = []
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        await sock.connect(path)
        for number in numbers:
            with suppress(BrokenPipeError):
                await sock.send(json.dumps({"verb": "version", "id": number}).encode())
            answers.append(await sock.recv(4096))
    return answers


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
        with trio.fail_after(60):
            before, fault, end = await ask(path, 1, 13, 2)
            assert json.loads(before)["id"] == 1
            assert json.loads(fault) == {
                "version": 1,
                "id": 13,
                "error": {"code": "failed", "text": f"a bug of the bus: {BUG}"},
            }
            assert end == b""
            (after,) = await ask(path, 2)
            assert json.loads(after)["id"] == 2
        nursery.cancel_scope.cancel()
    (line,) = lines
    assert BUG in line
