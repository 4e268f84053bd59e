"""The longest operations of each process, as an administrator sees them."""

from typing import Any

from sbus.limits import OPERATION_CPU_SECONDS_MAX
from tests.support.admin import administer
from tests.support.bus import Bus
from tests.support.cpu_time import cpu_seconds
from tests.support.processes import (
    clients_on_each,
    several_clients,
    worker_pids,
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


def test_a_worker_reads_a_large_table_in_pieces(bus: Bus) -> None:
    """None of its ticks has most of the work, which is 10,000 patterns of another worker."""
    with clients_on_each(bus, WORKERS) as ((reader,), (publisher,)), administer(bus) as admin:
        worker = worker_pids(bus)[1]
        for number in range(10_000):
            reader.sub(b"a/%d/*" % number)
        reader.sync()
        before = cpu_seconds(worker)
        publisher.pub(b"a/9999/b", b"x")
        assert reader.receive() == b"MSG a/9999/b\0x"
        spent = cpu_seconds(worker) - before
        assert longest_operations(admin)["1", "tick"]["cpu_seconds"] < spent / 2
