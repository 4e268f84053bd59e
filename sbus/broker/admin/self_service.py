"""Users who ask the bus, over the bus, what it has of them: one at a time, in their order.

Anybody may ask, with any number of connections, and an answer costs every worker a look. So all
questions of one user that are open share an answer, a bounded number at a time, users are answered
in turn, and there is a pause between two answers. A client that asked is not read until it is told,
so it has one question open.

This module does not know what is told.
"""

from collections.abc import Awaitable, Callable

import msgspec
import trio

from sbus.broker.front.client_registry import ClientRegistry
from sbus.protocol.admin_results import MeResult
from sbus.protocol.controls import me_reply

_PAUSE_SECONDS = 0.02
_TOLD_AT_ONCE_MAX = 64
"""Clients that share an answer; giving it to one takes some 30 us."""
_ANSWER_BYTES_MAX = 64 * 1024
"""It goes over the link to the client's worker."""


class SelfServiceQueries:
    """The front's. `find_out` tells what there is to tell a user, `tell` gives it to a client."""

    def __init__(
        self,
        registry: ClientRegistry,
        packet_bytes_max: int,
        find_out: Callable[[int], Awaitable[MeResult | None]],
        tell: Callable[[int, bytes], None],
    ) -> None:
        self._registry = registry
        self._packet_bytes_max = min(packet_bytes_max, _ANSWER_BYTES_MAX)
        self._find_out = find_out
        self._tell = tell
        self._asking: dict[int, list[int]] = {}
        self._came = trio.Event()

    def add(self, number: int) -> None:
        """A client asks; it may have left."""
        client = self._registry.get(number)
        if client is not None:
            self._asking.setdefault(client.credentials.uid, []).append(number)
            self._came.set()

    async def run(self) -> None:
        """Answer for ever."""
        while True:
            while self._asking:
                uid = next(iter(self._asking))
                everybody = self._asking.pop(uid)
                asking, later = everybody[:_TOLD_AT_ONCE_MAX], everybody[_TOLD_AT_ONCE_MAX:]
                if later:
                    self._asking[uid] = later  # behind the other users
                if any(self._registry.get(number) for number in asking):
                    found = await self._find_out(uid)
                    if found is not None:
                        packet = _fitting(found, self._packet_bytes_max)
                        for number in asking:
                            self._tell(number, packet)
                await trio.sleep(_PAUSE_SECONDS)
            self._came = trio.Event()
            await self._came.wait()


def _fitting(result: MeResult, packet_bytes_max: int) -> bytes:
    """The packet, with as much of the lists as there is room for."""
    while True:
        packet = me_reply(msgspec.json.encode(result))
        if len(packet) <= packet_bytes_max or not (result.clients or result.subscriptions):
            return packet
        result = msgspec.structs.replace(
            result,
            clients=result.clients[: len(result.clients) // 2],
            subscriptions=result.subscriptions[: len(result.subscriptions) // 2],
        )
