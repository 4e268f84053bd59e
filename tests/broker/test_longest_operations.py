"""The longest operations of each process, as an administrator sees them."""

from typing import Any

from sbus.limits import OPERATION_CPU_SECONDS_MAX
from tests.support.admin import administer
from tests.support.bus import Bus
from tests.support.processes import (
    several_clients,
)

WORKERS = 2

Times = dict[tuple[str, str], dict[str, Any]]


def longest_operations(admin: Any) -> Times:
    """By process and kind."""
    found = admin.ask("stats")["longest_operations"]
    times = {(it["process"], it["operation"]): it for it in found}
    assert len(times) == len(found)
    return times


def publish_from_all(bus: Bus, messages: int = 100) -> None:
    with several_clients(bus, 2 * WORKERS) as clients:
        for client in clients:
            client.sub(b"a/")
            client.sync()
        for number in range(messages):
            for client in clients:
                client.pub(b"a/%d/*" % number, b"")
        for client in clients:
            client.sync()


def test_every_process_has_its_own(bus: Bus) -> None:
    publish_from_all(bus)
    with administer(bus) as admin:
        times = longest_operations(admin)
    assert {process for process, _ in times} == {"0", "1", "front"}
    assert {kind for _, kind in times} <= OPERATION_CPU_SECONDS_MAX.keys()
    for worker in ("0", "1"):
        parts = [times[worker, kind]["seconds"] for kind in ("walk", "match", "command")]
        assert 0 < max(parts) <= times[worker, "tick"]["seconds"]
    assert times["front", "answer"]["seconds"] > 0
    assert times["front", "callback"]["seconds"] >= times["front", "hold"]["seconds"] > 0
    for it in times.values():
        assert it["cpu_seconds"] <= it["seconds"]
