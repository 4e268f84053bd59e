"""Storms of connections: other users are admitted, whatever one user's programs do."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from sbus.unix.open_files import raise_open_files_limit
from tests.support.admin import administer
from tests.support.bus import Bus, running_bus
from tests.support.cpu_time import cpu_seconds
from tests.support.needs import needs_tool
from tests.support.processes import stopped
from tests.support.raw_client import WHOAMI, RawClient
from tests.support.tracing import traced
from tests.support.users import directory_for_everybody, effective_user, needs_root

pytestmark = needs_root

ATTACKERS = (70_001, 70_002)
VICTIM = 70_010
HUNG_SECONDS = 60.0
EACH = 300
"""Connections of an attacker that wait before the victim's."""


@contextmanager
def used_up_quota(bus: Bus) -> Iterator[None]:
    """An attacker has as many connections as it may during the block."""
    with ExitStack() as stack:
        with effective_user(ATTACKERS[0]):
            for _ in range(1_024):
                last = stack.enter_context(bus.connect())
            last.whoami()
        yield


@contextmanager
def full_quota(bus: Bus) -> Iterator[None]:
    """During the block, this process is an attacker that has as many connections as it may."""
    with used_up_quota(bus), effective_user(ATTACKERS[0]):
        yield


@pytest.fixture
def bus() -> Iterator[Bus]:
    raise_open_files_limit()
    with directory_for_everybody() as directory, running_bus(directory, "-go") as running:
        yield running


def be_answered(bus: Bus) -> None:
    """The victim connects, and has an answer."""
    with effective_user(VICTIM), connect_soon(bus) as client:
        client.whoami()


def connect_soon(bus: Bus) -> RawClient:
    """A connection; tries again while the listen queue is full, as a storm may leave it."""
    deadline = time.monotonic() + HUNG_SECONDS
    while True:
        try:
            return bus.connect()
        except BlockingIOError:
            assert time.monotonic() < deadline, "the listen queue stays full"
            time.sleep(0.001)


def test_another_user_is_admitted_before_most_of_a_storm(bus: Bus) -> None:
    """Its connection is the last in the listen queue. Clients are numbered as they are admitted:
    without turns by user, the victim's would be the last."""
    with ExitStack() as stack:
        with stopped(bus.process.pid):
            for uid in (*ATTACKERS * EACH, VICTIM):
                with effective_user(uid):
                    last = stack.enter_context(bus.connect())
            last.control(WHOAMI)
        assert last.receive().startswith(b"CMSG " + WHOAMI)
        with administer(bus) as admin:
            (victim,) = admin.ask("clients", uid=VICTIM)["clients"]
    assert victim["client"] < EACH / 2


def test_all_connections_of_a_user_may_come_at_once_and_later_ones_at_a_rate() -> None:
    limits = ("--limit=user_connections_max=30", "--limit=user_connections_per_second_max=40")
    with directory_for_everybody() as directory, running_bus(directory, "-go", *limits) as bus:
        began_at = time.monotonic()
        visit(bus, 30)
        assert "user_connections_per_second_max" not in bus.stderr_text()
        visit(bus, 20)
        assert time.monotonic() - began_at >= 0.5 - 0.025
        assert "user_connections_per_second_max" in bus.stderr_text()
        be_answered(bus)


def visit(bus: Bus, count: int) -> None:
    """Connect so many times; each time be answered, and leave."""
    with effective_user(ATTACKERS[0]):
        for _ in range(count):
            with bus.connect() as client:
                client.whoami()


def test_a_refusal_costs_little(bus: Bus) -> None:
    """Of what the front does, so that a storm of refused connections cannot keep it busy."""
    refused = 1_000
    with full_quota(bus):
        before = cpu_seconds(bus.process.pid)
        for _ in range(refused):
            with connect_soon(bus) as client, suppress(BrokenPipeError):
                client.control(WHOAMI)
        used = cpu_seconds(bus.process.pid) - before
    assert used / refused < 200e-6, f"{used / refused * 1e6:.0f} us"


@needs_tool("strace", "strace")
def test_most_refusals_of_a_storm_are_without_a_word_and_of_few_system_calls(
    bus: Bus, tmp_path: Path
) -> None:
    """A storm leaves thousands of these in the listen queue before another user's connection. Where
    a client is to be told why, the bus first looks whether it is still there (poll)."""
    refused, trace = 2_000, tmp_path / "calls"
    with used_up_quota(bus), traced([bus.process.pid], f"-o{trace}"), effective_user(ATTACKERS[0]):
        refuse(bus, refused)
    calls = Counter(line.partition("(")[0] for line in trace.read_text().splitlines())
    assert refused < calls["accept4"] < 1.01 * refused
    assert calls["poll"] < refused / 2
    assert calls.total() < 12 * refused, calls


def refuse(bus: Bus, connections: int) -> None:
    """Connect so many times, and wait until the bus has refused all of them."""
    for _ in range(connections):
        connect_soon(bus).close()
    with connect_soon(bus) as last:
        last.receive_until_closed()


def test_a_refused_client_reads_why_whatever_it_has_sent(bus: Bus) -> None:
    with full_quota(bus), bus.connect() as client:
        with suppress(BrokenPipeError):
            for _ in range(100):
                client.send(b"MSG a\0b")
        (notice,) = client.receive_until_closed()
        assert notice.startswith(b"CMSG !/error\0too-many-connections ")
