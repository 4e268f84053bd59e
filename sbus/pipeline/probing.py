"""Probes: once a second a message that says when it was sent, for latency to be seen later.

The recorder receives it as any other message. Knows nothing of how it is recorded.
"""

import time

import trio

import sbus
from sbus.client.link import LinkOptions
from sbus.pipeline.probes import probe_key, probe_payload

_INTERVAL_SECONDS = 1.0


async def probe(address: str | None, options: LinkOptions, recorder: str) -> None:
    """Publish probes until cancelled. Raises BusError, AddressError."""
    key = probe_key(recorder)
    async with sbus.connect(address, **options) as bus:
        while True:
            await bus.publish(key, probe_payload(time.time_ns() // 1000))
            await bus.sync()
            await trio.sleep(_INTERVAL_SECONDS)
