"""A process under a subordinate id of a user (/etc/subuid): others are told its own ids, and what
it does counts as its owner's."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.admin import administer
from tests.support.bus import Bus, running_bus
from tests.support.flood import (
    assert_held,
    await_answer,
    filling,
    give_turns,
    limit_options,
    message,
)
from tests.support.needs import needs_compiled_step
from tests.support.raw_client import RawClient
from tests.support.senders import without_sender
from tests.support.subordinate_ids import FIRST, OWNER, connect_as, with_subordinate_ids
from tests.support.users import directory_for_everybody, needs_root

pytestmark = needs_root

WORKERS = 2


@pytest.fixture
def directory() -> Iterator[Path]:
    with directory_for_everybody() as made:
        yield made


@pytest.fixture(params=[pytest.param("compiled", marks=needs_compiled_step), "python"])
def bus(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> Iterator[Bus]:
    """A bus with this step, on a host where a user has subordinate ids."""
    monkeypatch.setenv("SBUS_STEP", request.param)
    limits = limit_options(user_held_seconds_max=60)
    command = with_subordinate_ids(directory)
    with running_bus(directory, "-go", *limits, workers=WORKERS, command=command) as running:
        yield running


def workers_of(bus: Bus, clients: Sequence[RawClient]) -> list[int]:
    """The worker of each of these clients, which are all that the bus has, in their order."""
    for client in clients:
        client.whoami()
    with administer(bus) as admin:
        found = sorted(admin.ask("clients")["clients"], key=lambda one: int(one["client"]))
    assert len(found) == len(clients)
    return [int(one["worker"]) for one in found]


def publish_three_times(client: RawClient, key: bytes) -> None:
    for _ in range(3):
        client.pub(key, b"")
        client.whoami()  # the next one finds its route in the cache


def test_the_sender_of_a_message_is_as_whoami_tells_it(bus: Bus) -> None:
    with ExitStack() as stack:
        publisher = stack.enter_context(connect_as(bus, FIRST))
        recipients = [stack.enter_context(bus.connect()) for _ in range(2 * WORKERS)]
        _, *workers = workers_of(bus, [publisher, *recipients])
        assert set(workers) == set(range(WORKERS))
        for recipient in recipients:
            recipient.control(b"sender/on")
            for pattern in (b"k", b"!/cred////k", b"!/presence/*/*"):
                recipient.sub(pattern)
            recipient.whoami()
        _, _, *own = publisher.whoami().split(b"/")
        assert own[:2] == [b"%d" % FIRST] * 2
        publish_three_times(publisher, b"k")
        publish_three_times(publisher, b"!/cred////k")
        publisher.control(b"!/publish\0token\0k\0receipt")
        assert publisher.receive().startswith(b"CMSG !/receipt\0token\0")
        publisher.control(b"!/join\0name\0k\0will")
        assert publisher.receive() == b"CMSG !/join\0name"
        publisher.close()
        messages = [
            *[b"MSG k\0"] * 3,
            *[b"MSG !/cred////k\0"] * 3,
            b"MSG k\0receipt",
            b"MSG !/presence/%d/name\0join" % OWNER,
            b"MSG k\0will",
            b"MSG !/presence/%d/name\0leave" % OWNER,
        ]
        for recipient in recipients:
            for expected in messages:
                sender, packet = without_sender(recipient.receive())
                assert packet.startswith(expected)
                assert sender is not None
                assert [b"%d" % number for number in sender[2:]] == own


@pytest.mark.parametrize(
    ("slow_id", "publishers_id", "is_elsewhere"),
    [(OWNER, FIRST, False), (FIRST, OWNER, True)],
    ids=["same worker", "other worker"],
)
def test_block_holds_publishers_under_other_ids_of_the_user(
    bus: Bus, slow_id: int, publishers_id: int, is_elsewhere: bool
) -> None:
    with ExitStack() as stack:
        slow = stack.enter_context(connect_as(bus, slow_id))
        others = [stack.enter_context(connect_as(bus, publishers_id)) for _ in range(2 * WORKERS)]
        slow_worker, *workers = workers_of(bus, [slow, *others])
        publisher = others[workers.index(1 - slow_worker if is_elsewhere else slow_worker)]
        witnesses = [one for one in others if one is not publisher]
        assert {workers[others.index(one)] for one in witnesses} == set(range(WORKERS))
        slow.control(b"blocking/soft/block")
        slow.sub(b"k")
        slow.whoami()
        packets = filling()
        for packet in packets:
            publisher.send(packet)
        publisher.whoami()
        more = [message(b"%d" % number, 100) for number in range(10)]
        for packet in more:
            publisher.send(packet)
            give_turns(witnesses)
        publisher.control(b"!/cred/whoami")
        assert_held(publisher, witnesses)
        assert [slow.receive() for _ in (*packets, *more)] == packets + more
        await_answer(publisher)
