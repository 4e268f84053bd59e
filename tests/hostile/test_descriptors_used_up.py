"""Users that take all descriptors they can get: others, and administrators, still get some."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sbus.unix.open_files import raise_open_files_limit
from tests.support.admin import administer
from tests.support.bus import Bus, running_bus, sbusd_with_few_descriptors
from tests.support.threads import wait_until
from tests.support.users import directory_for_everybody, effective_user, needs_root

pytestmark = needs_root

DESCRIPTORS = 1_024
"""The hard limit on many hosts, and so many connections a user may have anyway."""
ATTACKERS = range(70_001, 70_013)
VICTIM = 70_020


@pytest.fixture
def bus() -> Iterator[Bus]:
    raise_open_files_limit()  # of this process, which has all clients
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-go", command=sbusd_with_few_descriptors(DESCRIPTORS)) as running,
    ):
        yield running


def take_all(bus: Bus, uid: int, stack: ExitStack) -> int:
    """Connect as this user until the bus refuses it; returns how many are served."""
    for number in range(DESCRIPTORS + 100):
        with effective_user(uid):
            client = stack.enter_context(bus.connect())
        if not client.is_served("too-many-connections"):
            return number
    raise AssertionError("there is no end to it")


def take_and_leave(bus: Bus, uid: int) -> bool:
    """Whether a client of this user is served."""
    with effective_user(uid), bus.connect() as client:
        return client.is_served("too-many-connections")


def test_a_user_leaves_as_many_to_others_as_it_takes_and_some_to_administrators(bus: Bus) -> None:
    with ExitStack() as stack:
        first, second = (take_all(bus, uid, stack) for uid in ATTACKERS[:2])
        assert 300 < first < 500
        assert first / 2 - 2 <= second <= first / 2 + 2
        with effective_user(VICTIM), bus.connect() as client:
            client.whoami()
        for uid in ATTACKERS[2:]:
            take_all(bus, uid, stack)
        for _ in range(20):
            stack.enter_context(bus.connect()).whoami()
        with administer(bus) as admin:
            stats = admin.ask("stats")
        assert stats["connections_refused"].keys() == {"too-many-connections"}
    wait_until(lambda: take_and_leave(bus, ATTACKERS[0]), "others have left")
