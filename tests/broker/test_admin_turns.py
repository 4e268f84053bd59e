"""Administrators take turns, however many requests one of them has sent already."""

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

QUESTIONS = 50
"""They all fit into the connection."""


def test_an_administrator_that_floods_requests_leaves_turns_to_others(tmp_path: Path) -> None:
    answered: list[int] = []
    lines: list[str] = []

    async def answer(request: admin.Version) -> msgspec.Struct:
        answered.append(request.id)
        return DrainResult(0)

    async def serve(listener: socket.socket, others: socket.socket) -> None:
        server = AdminServer(
            listener,
            Administrators(()),
            cast(Closer, ClosesAtOnce()),
            {admin.Version: answer},
            {},
            logging_to(lines),
        )
        with trio.fail_after(60):
            async with trio.open_nursery() as tasks:
                tasks.start_soon(server.run, trio.CancelScope())
                while 0 not in answered:
                    await trio.lowlevel.wait_readable(others)
                tasks.cancel_scope.cancel()

    path = str(tmp_path / "admin")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hasty,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other,
    ):
        listener.bind(path)
        listener.listen()
        for sock, numbers in ((hasty, range(1, QUESTIONS + 1)), (other, range(1))):
            sock.connect(path)
            for number in numbers:
                sock.send(json.dumps({"verb": "version", "id": number}).encode())
        trio.run(serve, listener, other)
    assert not lines, "a fault in answering"
    assert answered.index(0) < QUESTIONS / 2
