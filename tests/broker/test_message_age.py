"""Clients of the library that want no message which has waited too long."""

from pathlib import Path

import anyio

import sbus
from sbus.client.options import LinkOptions
from tests.support.admin import administer
from tests.support.bus import Bus, kill_tree, running_bus
from tests.support.event_loops import on_both_event_loops

TIMEOUT_S = 60.0


def ages_chosen(bus: Bus) -> list[int]:
    with administer(bus) as admin:
        return [client["activity"]["age_ms_max"] for client in admin.ask("clients")["clients"]]


@on_both_event_loops
async def test_both_clients_keep_their_age_on_the_next_bus(tmp_path: Path) -> None:
    options = LinkOptions(age_seconds=1.5, reconnect=True)
    with anyio.fail_after(TIMEOUT_S):
        with running_bus(tmp_path) as bus:
            twin = sbus.blocking.connect(bus.address, **options)
            connecting = sbus.connect(bus.address, **options)
            client = await connecting.__aenter__()
            twin.sync(timeout_seconds=TIMEOUT_S)
            await client.sync()
            assert ages_chosen(bus) == [1500, 1500]
            kill_tree(bus.process)
        with running_bus(tmp_path, "--replace") as bus, twin:
            twin.sync(timeout_seconds=TIMEOUT_S)
            await client.sync()
            assert ages_chosen(bus) == [1500, 1500]
            await connecting.__aexit__(None, None, None)
