"""When the bus ends: with its last client, or when the time for draining is over."""

import trio
import trio.testing

from sbus.broker.config.settings import BusSettings
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.shutdown import Shutdown
from sbus.limits import Limits
from sbus.unix.credentials import Credentials
from sbus.unix.notify import Notifier
from tests.support.events import logging_to
from tests.support.no_socket import no_socket
from tests.unit.shared.memories import open_account, spare_slots


class Scene:
    """A bus with one client."""

    def __init__(self, nursery: trio.Nursery) -> None:
        settings = BusSettings(workers=1)
        self.registry = ClientRegistry(1, spare_slots())
        self.lines: list[str] = []
        self.shutdown = Shutdown(self.registry, settings, logging_to(self.lines), Notifier())
        self.client = self.connect()
        self.has_ended = False
        nursery.start_soon(self._wait)

    async def _wait(self) -> None:
        await self.shutdown.wait()
        self.has_ended = True

    def connect(self) -> Client:
        own, account = Credentials(gid=1, uid=2, pid=3), open_account(Limits())
        return self.registry.add(0, no_socket(), own, account)

    def disconnect(self) -> None:
        self.registry.remove(self.client.number)
        self.shutdown.check_empty()


async def test_the_last_client_ends_a_bus_that_drains(nursery: trio.Nursery) -> None:
    scene = Scene(nursery)
    scene.shutdown.drain(None)
    assert scene.shutdown.is_draining
    assert scene.shutdown.admission_scope.cancel_called
    await trio.testing.wait_all_tasks_blocked()
    assert not scene.has_ended
    scene.disconnect()
    await trio.testing.wait_all_tasks_blocked()
    assert scene.has_ended
    assert len(scene.lines) == 2, "that it drains, and that it stops"


async def test_a_bus_without_clients_ends_when_it_has_to_drain(nursery: trio.Nursery) -> None:
    scene = Scene(nursery)
    scene.disconnect()
    scene.shutdown.drain(60)
    await trio.testing.wait_all_tasks_blocked()
    assert scene.has_ended


async def test_the_shortest_time_for_draining_counts(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    scene = Scene(nursery)
    for seconds in (30, 10, 20):
        scene.shutdown.drain(seconds)
    await trio.sleep(9.5)
    assert not scene.has_ended
    await trio.sleep(1)
    assert scene.has_ended
