"""Tasks that share a connection: the refusal of one is not raised in the calls of another."""

import anyio
import anyio.lowlevel
import pytest

import sbus
from tests.support.bus import Bus
from tests.support.event_loops import on_both_event_loops

TIMEOUT_S = 60.0
DENIED = "not-allowed"
Client = sbus.Connection[sbus.Message]


class Refused:
    """A task that publishes a message that is refused, and asks about it when it is told to."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asks = anyio.Event()
        self.has_published = anyio.Event()
        self.error: sbus.PacketRefused | None = None

    async def run(self) -> None:
        await self._client.publish("denied/a")
        self.has_published.set()
        await self._asks.wait()
        with pytest.raises(sbus.PacketRefused, match=DENIED) as caught:
            await self._client.sync()
        self.error = caught.value

    def ask(self) -> None:
        self._asks.set()


@on_both_event_loops
async def test_other_calls_are_not_told_and_the_task_itself_is(strict_bus: Bus) -> None:
    """Also when they are the ones that read the notice."""
    with anyio.fail_after(TIMEOUT_S):
        async with sbus.connect(strict_bus.address) as client:
            refused = Refused(client)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(refused.run)
                await refused.has_published.wait()
                async with client.subscription("a") as messages:
                    assert client.statistics().packets_refused == 1
                    await client.sync()
                    await client.whoami()
                    await client.me()
                    await client.join("ann")
                    assert len(await client.members("*/ann")) == 1
                    await client.publish("a")
                    assert (await messages.receive()).key == b"a"
                    await client.leave()
                refused.ask()
            assert refused.error is not None
            await client.sync()
