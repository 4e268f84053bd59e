"""A user takes names, watches everybody and leaves wills, as much as it can: names, joins and
messages of another user are as if it were alone.

What an attacker takes of the bus is bounded where names are taken, so these tests count.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from sbus.bench.attacks.programs import LONGEST_WILL, WATCH_NAMES
from tests.support.bus import Bus, running_bus
from tests.support.pattern_bombs import connect_as
from tests.support.presence import join, leave, members
from tests.support.raw_client import RawClient
from tests.support.threads import meanwhile
from tests.support.users import STRANGER, directory_for_everybody, needs_root

pytestmark = needs_root

VICTIM = STRANGER - 1
THREADS, CLIENTS = 4, 10
ROUNDS = 60
BUS_BYTES = 384 * 1024
SMALL = ("--limit", "table_bytes=1048576", "--limit", f"bus_subscription_bytes_max={BUS_BYTES}")
"""Room for some ninety of the longest wills."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with directory_for_everybody() as entered_by_all:
        yield entered_by_all


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def crowd(bus: Bus, stack: ExitStack, uid: int, size: int) -> list[RawClient]:
    return [stack.enter_context(connect_as(bus, uid)) for _ in range(size)]


def test_names_that_a_user_squats_are_free_for_others(directory: Path, stack: ExitStack) -> None:
    bus = stack.enter_context(running_bus(directory, "-o"))
    squatters = crowd(bus, stack, STRANGER, 50)
    names = [b"worker-%d" % number for number in range(50)]
    assert {join(*each) for each in zip(squatters, names, strict=True)} == {""}
    watcher, member, another = crowd(bus, stack, VICTIM, 3)
    watcher.sub(b"!/presence/%d/*" % VICTIM)
    watcher.whoami()
    for name in names:
        assert join(member, name) == ""
        assert join(another, name) == "name-taken"
        assert [it.name for it in members(another, b"%d/*" % VICTIM)] == [name]
        leave(member)
    told = watcher.sync()
    assert len(told) == 2 * len(names)
    assert all(b"/%d/worker-" % VICTIM in packet for packet in told)


def test_names_with_long_wills_leave_room_for_names_and_patterns_of_others(
    directory: Path, stack: ExitStack
) -> None:
    """A user gets half of what all of them may have."""
    bus = stack.enter_context(running_bus(directory, "-o", *SMALL))
    attackers = crowd(bus, stack, STRANGER, 60)
    outcomes = [
        join(client, b"n%d" % number, LONGEST_WILL) for number, client in enumerate(attackers)
    ]
    assert 0 < outcomes.count("") * len(LONGEST_WILL) < BUS_BYTES / 2
    assert set(outcomes) == {"", "too-many-patterns"}
    for number, client in enumerate(crowd(bus, stack, VICTIM, 20)):
        assert join(client, b"n%d" % number, b"will\0" + bytes(100)) == ""
        client.control(b"!/notices/on")
        client.sub(b"own/%d/*" % number)
        client.pub(b"own/%d/a" % number, b"")
        assert client.sync() == [b"MSG own/%d/a\0" % number]


def test_a_storm_of_joins_and_wills_costs_another_user_nothing(
    directory: Path, stack: ExitStack
) -> None:
    """Attackers that watch everybody do not read what they are told."""
    bus = stack.enter_context(running_bus(directory, "-o", *SMALL))
    attackers = crowd(bus, stack, STRANGER, THREADS * CLIENTS)
    watcher, member, publisher = crowd(bus, stack, VICTIM, 3)
    for pattern in (b"!/presence/%d/*" % VICTIM, b"m/*", b"will"):
        watcher.sub(pattern)
    watcher.control(b"!/notices/on")
    watcher.whoami()
    shares = [attackers[at::THREADS] for at in range(THREADS)]
    with meanwhile(*(partial(storm, share, at) for at, share in enumerate(shares))):
        for number in range(ROUNDS):
            assert join(member, b"member", b"will\0%d" % number) == ""
            publisher.pub(b"m/a", b"%d" % number)
            publisher.whoami()
            assert leave(member) == b"member"
        assert join(member, b"member", b"will\0last") == ""
        member.close()
        told = [watcher.receive() for _ in range(3 * ROUNDS + 3)]
        assert watcher.sync() == []
    what = [packet.partition(b"\0")[2].split(b" ")[0] for packet in told]
    rounds = [it for number in range(ROUNDS) for it in (b"join", b"%d" % number, b"leave")]
    assert what == [*rounds, b"join", b"last", b"leave"]


def storm(clients: list[RawClient], number: int, stop: Event) -> None:
    """Take and give up names; go, one after the other, and leave wills."""
    stays, *mortals = clients
    for at, client in enumerate(mortals):
        join(client, b"mortal-%d-%d" % (number, at), LONGEST_WILL)
        for packet in (WATCH_NAMES, b"SUB a"):
            client.send(packet)
    while not stop.is_set():
        join(stays, b"n%d" % number, LONGEST_WILL)
        leave(stays)
        if mortals:
            mortals.pop().close()
