"""Which links a channel with `when_full = "block"` waits for."""

import asyncio

from sbus.bridge.bridge import Bridge
from sbus.bridge.configuration import parse_configuration
from sbus.unix.notify import Notifier

CONFIG = b"""
[channels.lamps]
patterns = ["lamps/"]
when_full = "block"
[channels.doors]
patterns = ["doors/"]
[links.office]
servers = ["nats://x"]
export = ["lamps"]
[links.house]
servers = ["nats://y"]
export = ["doors"]
import = ["lamps"]
"""


def test_a_channel_waits_only_for_the_links_that_export_it() -> None:
    async def scene() -> None:
        bridge = Bridge(parse_configuration(CONFIG, "bus"), lambda _: None, Notifier())
        office, house = bridge.exchange.ports
        house.room.clear()
        await asyncio.wait_for(bridge._wait_room("lamps"), 5)
        office.room.clear()
        waiting = asyncio.create_task(bridge._wait_room("lamps"))
        await asyncio.sleep(0)
        assert not waiting.done()
        office.room.set()
        await asyncio.wait_for(waiting, 5)

    asyncio.run(scene())
