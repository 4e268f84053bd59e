"""Attack: clients whose socket filters make every `send` to them take long.

The kernel runs a client's filter in the `send` of the worker. What that takes is bounded for each
user, nobody else waits for it, and no client is disconnected.
"""

from contextlib import ExitStack
from typing import Any

import pytest

from sbus.bench.attacks.programs import attach_filter, slow_message
from tests.support.admin import administer
from tests.support.bus import running_bus
from tests.support.cpu_time import cpu_seconds
from tests.support.pattern_bombs import connect_as
from tests.support.processes import worker_pids
from tests.support.users import STRANGER, directory_for_everybody, needs_root

pytestmark = needs_root

VICTIM = STRANGER - 1
CPU_SECONDS_MAX = 0.4
"""For all messages; without a bound it would be 0.9 or 1.1 s, and is 0.04 s."""
PACKET = slow_message()


@pytest.mark.parametrize("workers", [1, 2])
def test_sends_to_their_user_are_delayed(workers: int) -> None:
    """With two workers, messages come to one of them through the log. With a victim, there are
    eight clients in a worker, which are not bounded together."""
    filtered, messages = 7, 100
    traffic, told = fan_out(workers, filtered, messages)
    assert traffic["discarded"]["fan-out"] == 0
    assert 0 < traffic["slow_sends"] < filtered * messages / 2
    assert len(told) == workers, "once by each worker, all of which serve such clients"
    assert all(f"uid {STRANGER}" in line for line in told)


@pytest.mark.parametrize("workers", [1, 2])
def test_many_clients_of_their_user_miss_messages(workers: int) -> None:
    """They are bounded together, too, and most sends are not made."""
    filtered, messages = 50, 20
    traffic, _ = fan_out(workers, filtered, messages)
    assert filtered * messages / 2 < traffic["discarded"]["fan-out"] < filtered * messages


def fan_out(workers: int, filtered: int, messages: int) -> tuple[dict[str, Any], list[str]]:
    """Publish to so many clients with filters, and to victims, who get everything for little time;
    returns the figures of the bus, and the warnings that sends are delayed."""
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
        assert bus.pids() == processes
        stats = admin.ask("stats")
        assert stats["clients"] == filtered + workers
        return stats["traffic"], [
            line for line in bus.stderr_text().splitlines() if "sending to them takes" in line
        ]


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
