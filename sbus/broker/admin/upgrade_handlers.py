"""The verbs by which a new program takes the place of the bus: `upgrade` and `takeover`."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import msgspec

from sbus.broker.admin.request_codec import AdminFault, Handler, Handlers, Reply, Takers
from sbus.broker.admin.stream_registry import StreamRegistry
from sbus.broker.front.hand_over import HandOverResult
from sbus.broker.front.upgrade import Upgrader
from sbus.broker.ipc.upgrade_link import UpgradeFailed
from sbus.protocol import admin
from sbus.protocol.admin_results import TakeOverResult, UpgradeResult
from sbus.unix.credentials import peer_credentials
from sbus.unix.user_namespace import known_uids

_STREAM_END = "another process serves the bus now: connect again"


class UpgradeHandlers:
    """Of one bus."""

    def __init__(self, upgrader: Upgrader, streams: StreamRegistry) -> None:
        self._upgrader = upgrader
        self._streams = streams
        self.takers: Takers = {admin.Upgrade: self._upgrade, admin.TakeOver: self._take_over}

    async def _upgrade(self, _request: admin.Upgrade, _sock: socket.socket, reply: Reply) -> None:
        with self._attempt():
            await reply(_result(await self._upgrader.start_program()))

    async def _take_over(self, _request: admin.TakeOver, sock: socket.socket, reply: Reply) -> None:
        if peer_credentials(sock).uid not in known_uids({0, os.geteuid()}):
            raise AdminFault("not-allowed", "only root and the bus's own user may do that")
        with self._attempt():
            self._upgrader.check_take_over()
            await reply(TakeOverResult())
            with suppress(UpgradeFailed):  # the other program was told, or has ended
                await self._upgrader.hand_over_to(sock)

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        """Raises AdminFault. Behind the block this process ends, if another one serves the bus."""
        try:
            with self._upgrader.attempt():
                yield
        except UpgradeFailed as error:
            raise AdminFault("failed", str(error)) from error
        finally:
            if self._upgrader.is_handed_over:
                self._streams.end_all(_STREAM_END)

    def refused_meanwhile(self, handlers: Handlers) -> Handlers:
        """Handlers of requests that are refused during an upgrade, in which what they change could
        be lost; and an upgrade is refused while they are carried out."""
        return {kind: partial(self._handle, handler) for kind, handler in handlers.items()}

    async def _handle(self, handler: Handler, request: admin.Request) -> msgspec.Struct:
        try:
            with self._upgrader.change():
                return await handler(request)
        except UpgradeFailed as error:
            raise AdminFault("failed", str(error)) from error


def _result(done: HandOverResult) -> UpgradeResult:
    return UpgradeResult(done.program, done.pid, done.clients, done.pause_seconds)
