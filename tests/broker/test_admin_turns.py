"""Administrators take turns, however many requests one of them has sent already."""

import json
import socket
from pathlib import Path

import msgspec
import trio

from sbus.broker.admin.server import AdminServer
from sbus.protocol import admin
from sbus.protocol.admin_results import DrainResult, MonitorResult

QUESTIONS = 50
"""They all fit into the connection."""


def fail(error: Exception) -> None:
    raise error


def test_an_administrator_that_floods_requests_leaves_turns_to_others(tmp_path: Path) -> None:
    answered: list[int] = []

    async def answer(request: admin.Request) -> msgspec.Struct:
        answered.append(request.id)
        return DrainResult(0)

    async def begin_stream(_: object, __: socket.socket) -> MonitorResult:
        raise AssertionError("nobody asked for a stream")

    async def serve(listener: socket.socket, others: socket.socket) -> None:
        server = AdminServer(listener, frozenset(), answer, begin_stream, fail)
        with trio.fail_after(5):
            async with trio.open_nursery() as tasks:
                tasks.start_soon(server.run)
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
    assert answered.index(0) < QUESTIONS / 2
