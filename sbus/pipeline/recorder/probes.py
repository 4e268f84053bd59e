"""Probes: a message each second that holds its time of sending.

The recorder receives its probes like any other message, so the recording shows the latency of the
whole way through the bus.
"""

import time

import trio

import sbus
from sbus.client.link import LinkOptions
from sbus.pipeline.store.schemas import PROBE_KEY_PREFIX

_INTERVAL_SECONDS = 1.0


def probe_key(recorder: str) -> bytes:
    """The key of this recorder's probes; nobody else should publish under it."""
    return (PROBE_KEY_PREFIX + recorder).encode()


async def publish_probes(address: str | None, options: LinkOptions, recorder: str) -> None:
    """Publish probes until cancelled. Raises BusError, AddressError."""
    key = probe_key(recorder)
    async with sbus.connect(address, **options) as bus:
        while True:
            await bus.publish(key, b"%d" % (time.time_ns() // 1000))
            await bus.sync()
            await trio.sleep(_INTERVAL_SECONDS)
