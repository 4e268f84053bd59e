"""The admin socket: administrators take turns, and a fault in answering ends one connection."""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
import pytest
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


async def answer(request: admin.Version) -> msgspec.Struct:
    if request.id == 13:
        raise LookupError("a fault")
    return DrainResult(0)


BUG = f"LookupError('a fault') (test_server.py:{answer.__code__.co_firstlineno + 2})"


class Scene:
    """A server, which answers requests for the version, and what it complained about."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.answered: list[int] = []
        self.lines: list[str] = []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen()
        self.server = AdminServer(
            self.listener,
            Administrators(()),
            cast(Closer, ClosesAtOnce()),
            {admin.Version: self._answer},
            {},
            logging_to(self.lines),
        )

    async def _answer(self, request: admin.Version) -> msgspec.Struct:
        self.answered.append(request.id)
        return await answer(request)

    async def connect(self) -> trio.socket.SocketType:
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        await sock.connect(self.path)
        return sock


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(str(tmp_path / "admin"))
    yield made
    made.listener.close()


async def ask(sock: trio.socket.SocketType, number: int) -> None:
    await sock.send(json.dumps({"verb": "version", "id": number}).encode())


async def test_a_fault_ends_one_connection(scene: Scene, nursery: trio.Nursery) -> None:
    nursery.start_soon(scene.server.run, trio.CancelScope())
    replies = []
    with trio.fail_after(60), await scene.connect() as one, await scene.connect() as other:
        for sock, number in ((one, 1), (one, 13), (one, 2), (other, 3)):
            with suppress(BrokenPipeError):
                await ask(sock, number)
            replies.append(await sock.recv(4096))
    before, fault, end, after = replies
    assert (json.loads(before)["id"], end, json.loads(after)["id"]) == (1, b"", 3)
    assert json.loads(fault) == {
        "version": 1,
        "id": 13,
        "error": {"code": "failed", "text": f"a bug of the bus: {BUG}"},
    }
    (line,) = scene.lines
    assert BUG in line
    nursery.cancel_scope.cancel()


async def test_an_administrator_that_floods_requests_leaves_turns_to_others(
    scene: Scene, nursery: trio.Nursery
) -> None:
    with trio.fail_after(60), await scene.connect() as hasty, await scene.connect() as other:
        for number in range(20, 20 + QUESTIONS):
            await ask(hasty, number)
        await ask(other, 0)
        nursery.start_soon(scene.server.run, trio.CancelScope())
        await other.recv(4096)
    nursery.cancel_scope.cancel()
    assert not scene.lines, "a fault in answering"
    assert scene.answered.index(0) < QUESTIONS / 2
