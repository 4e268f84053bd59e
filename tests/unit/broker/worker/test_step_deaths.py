"""A worker that dies at any store of the compiled step leaves the shared memory valid.

A child process makes the step and ends before its first store; another one, with another shared
memory, before its second store, and so on. After each death another worker goes on.
"""

from itertools import groupby

from sbus.limits import Limits
from sbus.shared.worker_statistics import MESSAGES_IN, counters_of
from tests.fuzz.one_process_bus import OneProcessBus, one_process_bus
from tests.support import compiled_step
from tests.support.dying_child import dies
from tests.support.needs import needs_compiled_step

pytestmark = needs_compiled_step

STORES_MAX = 200
LIMITS = Limits(log_bytes=8 * 1024 * 1024, table_bytes=1024 * 1024)


def test_what_a_lone_client_changes_is_changed_by_single_stores() -> None:
    """Its worker serves it in the poll: it notes the client, and shares its statistics at last. A
    change that is no store would come with another one."""
    seen: list[tuple[int, int]] = []
    has_died = True
    while has_died and len(seen) < STORES_MAX:
        with one_process_bus("slash", LIMITS) as bus:
            client = bus.connect(0)
            for packet in (b"SUB a", b"MSG a\0first"):
                client.send(packet)
            bus.settle()
            client.send(b"MSG a\0second")

            def act(bus: OneProcessBus = bus) -> None:
                compiled_step.die_at_store(len(seen))
                assert bus.stepped[0].poll(0.01) == []

            has_died = dies(bus.memory.fd, bus.memory.lock.fd, act)
            published = counters_of(bus.memory.statistics, 0)[MESSAGES_IN]
            seen.append((bus.memory.served_clients[0], published))
    assert not has_died
    number = client.number
    assert [seen for seen, _ in groupby(seen)] == [(0, 1), (number, 1), (0, 1), (0, 2)]
