"""Self service: users who ask the bus, over the bus, what it has of them.

Anybody may ask, with any number of connections, and every worker of theirs has to answer. So all
open requests of one user share an answer, a bounded number at a time, users are answered in turn,
and there is a pause between two answers. A client that asked is not read until it is answered, so
it has one request open.
"""

import msgspec
import trio

from sbus.broker.admin.inspection_handlers import InspectionHandlers
from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.worker_protocol import SelfServiceReply
from sbus.protocol.admin_results import MeResult
from sbus.protocol.controls import me_reply

_PAUSE_SECONDS = 0.02
_CLIENTS_PER_ANSWER_MAX = 64
"""Clients that share an answer; sending it to one takes some 30 us."""
_PACKET_BYTES_MAX = 64 * 1024
"""An answer goes over the link to the client's worker."""


class SelfServiceQueries:
    """Answers the users of one bus."""

    def __init__(
        self,
        registry: ClientRegistry,
        supervisor: Supervisor,
        inspection: InspectionHandlers,
        packet_bytes_max: int,
    ) -> None:
        self._registry = registry
        self._supervisor = supervisor
        self._inspection = inspection
        self._packet_bytes_max = min(packet_bytes_max, _PACKET_BYTES_MAX)
        self._asking: dict[int, list[int]] = {}
        """Clients that asked, by user."""
        self._has_requests = trio.Event()

    def add(self, number: int) -> None:
        """A client asks; it may have left."""
        client = self._registry.get(number)
        if client is not None:
            self._asking.setdefault(client.user, []).append(number)
            self._has_requests.set()

    async def run(self) -> None:
        """Answer for ever."""
        while True:
            while self._asking:
                await self._answer(next(iter(self._asking)))
                await trio.sleep(_PAUSE_SECONDS)
            self._has_requests = trio.Event()
            await self._has_requests.wait()

    async def _answer(self, uid: int) -> None:
        """Answer some clients of a user; the others wait behind the other users."""
        everybody = self._asking.pop(uid)
        asking, later = everybody[:_CLIENTS_PER_ANSWER_MAX], everybody[_CLIENTS_PER_ANSWER_MAX:]
        if later:
            self._asking[uid] = later
        if not any(self._registry.get(number) for number in asking):
            return
        result = await self._inspection.me(uid)
        if result is None:
            return
        packet = _fitting(result, self._packet_bytes_max)
        for number in asking:
            client = self._registry.get(number)
            if client is not None:
                self._supervisor.send(client.worker, SelfServiceReply(number, packet))


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
