"""A user subscribes to patterns that all match the same keys in different ways.

What a lookup takes is bounded where patterns are subscribed to, so others wait no longer for it.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.bus import running_bus
from tests.support.cpu_time import cpu_seconds, least_cpu_seconds
from tests.support.pattern_bombs import (
    BOMBS,
    KEYS,
    connect_as,
    subscribe_to_bombs,
)
from tests.support.processes import worker_pids
from tests.support.raw_client import RawClient
from tests.support.users import STRANGER, directory_for_everybody, needs_root

pytestmark = needs_root

VICTIM = STRANGER - 1
CLIENTS = 4
"""Among which the attacker has to divide the patterns, because of the quotas for their bytes."""
CPU_SECONDS_MAX = 2.0
"""For 400 lookups in each of two workers, which took 5 to 8 s when nothing bounded them, and take
0.7 s."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with directory_for_everybody() as entered_by_all:
        yield entered_by_all


def test_lookups_take_little_time_whatever_a_user_subscribed_to(directory: Path) -> None:
    assert least_cpu_seconds(lambda: lookup_seconds(directory), CPU_SECONDS_MAX) < CPU_SECONDS_MAX


def lookup_seconds(directory: Path) -> float:
    """CPU time of the workers of a new bus."""
    with running_bus(directory, "-o") as bus, ExitStack() as stack:
        clients = [stack.enter_context(connect_as(bus, STRANGER)) for _ in range(2 * CLIENTS)]
        subscribe_to_bombs(clients[1::2])
        pids = worker_pids(bus).values()
        before = sum(map(cpu_seconds, pids))
        for key in KEYS:
            clients[0].pub(key, b"")
        clients[0].sync()
        for client in clients[1::2]:
            client.sync()
        return sum(map(cpu_seconds, pids)) - before


def refusals(client: RawClient, patterns: list[bytes]) -> int:
    replies = []
    for pattern in patterns:
        client.sub(pattern)
        replies += client.sync()
    assert all(reply.startswith(b"CMSG !/error\0too-many-steps ") for reply in replies)
    return len(replies)


def test_patterns_beyond_the_bound_are_refused_and_others_are_not(directory: Path) -> None:
    """The attacker may go on with the shapes that it has, and other users notice nothing."""
    with (
        running_bus(directory, "-o") as bus,
        connect_as(bus, STRANGER) as attacker,
        connect_as(bus, VICTIM) as victim,
    ):
        for client in (attacker, victim):
            client.control(b"!/notices/on")
        assert refusals(attacker, BOMBS[:2_000]) > 1_500
        assert refusals(attacker, [b"literal", *(b"y*/%d*/" % number for number in range(10))]) == 0
        assert refusals(victim, BOMBS[:100]) == 0
        victim.pub(KEYS[0], b"")
        assert victim.sync() == [b"MSG %b\0" % KEYS[0]]
