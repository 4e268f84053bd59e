"""Attack: clients whose socket filters make every `send` to them take long.

The kernel runs a client's filter in the `send` of the worker. What that takes is bounded for each
user, nobody else waits for it, and no client is disconnected.
"""

from contextlib import ExitStack

import pytest

from sbus.bench.attacks.programs import attach_filter, slow_message
from tests.support.admin import administer
from tests.support.bus import running_bus
from tests.support.pattern_bombs import connect_as, cpu_seconds
from tests.support.processes import worker_pids
from tests.support.users import STRANGER, directory_for_everybody, needs_root

pytestmark = needs_root

VICTIM = STRANGER - 1
CPU_SECONDS_MAX = 0.4
"""For all messages; without a bound it would be 0.9 or 1.1 s, and is 0.04 s."""
PACKET = slow_message()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("filtered", "messages"), [(8, 100), (50, 20)])
def test_filters_cost_others_little(workers: int, filtered: int, messages: int) -> None:
    """With two workers, messages come to one of them through the log. More than eight clients in a
    worker are bounded together, too, and then miss messages before their sends are timed."""
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-o", workers=workers) as bus,
        administer(bus) as admin,
        ExitStack() as stack,
    ):
        slow = [stack.enter_context(connect_as(bus, STRANGER)) for _ in range(filtered)]
        victims = [stack.enter_context(connect_as(bus, VICTIM)) for _ in range(workers)]
        for client in (*slow, *victims):
            client.sub(b"a")
            client.sync()
        for client in slow:
            attach_filter(client.sock)
        processes = bus.pids()
        before = sum(map(cpu_seconds, worker_pids(bus).values()))
        for _ in range(messages):
            victims[0].send(PACKET)
        received = [client.sync() for client in victims]
        spent = sum(map(cpu_seconds, worker_pids(bus).values())) - before
        assert received == [[PACKET] * messages] * workers
        assert spent < CPU_SECONDS_MAX
        traffic = admin.ask("stats")["traffic"]
        assert traffic["slow_sends"] < filtered * messages
        assert traffic["slow_sends"] + traffic["discarded"]["fan-out"] > 0
        assert admin.ask("stats")["clients"] == filtered + workers
        assert bus.pids() == processes
        told = [line for line in bus.stderr_text().splitlines() if "sending to them takes" in line]
        assert len(told) <= workers
        assert told or filtered > 8
        assert all(f"uid {STRANGER}" in line for line in told)


def test_a_client_with_a_filter_gets_everything_in_the_end() -> None:
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-o", workers=1) as bus,
        connect_as(bus, STRANGER) as slow,
    ):
        slow.sub(b"a")
        slow.sync()
        attach_filter(slow.sock)
        for _ in range(20):
            slow.send(PACKET)
        assert slow.sync() == [PACKET] * 20
