"""Attack: many clients subscribe to another user's key, and read what they are sent.

Every message of that user goes to all of them, and their filters make each `send` take some 16 us,
which is just not too long. Beyond `fan_out_us_max`, messages are left out, which the
subscribers are told and the publisher does not notice. The same holds for a secret key that names
the process of the clients, which the bus looks at before each delivery.
"""

from contextlib import ExitStack

import pytest

from sbus.bench.attacks.programs import attach_filter
from tests.support.admin import administer
from tests.support.bus import running_bus
from tests.support.flood import LOST
from tests.support.pattern_bombs import connect_as
from tests.support.processes import stopped, worker_pids
from tests.support.raw_client import RawClient
from tests.support.users import STRANGER, directory_for_everybody, needs_root

pytestmark = needs_root

OTHER, FIRST_VICTIM = STRANGER - 101, STRANGER - 10
OTHERS = 10
SUBSCRIBERS, ROUNDS, MESSAGES = 200, 2, 100


@pytest.mark.parametrize(("workers", "publishers"), [(1, 4), (2, 1)])
def test_they_miss_messages_and_know_how_many(workers: int, publishers: int) -> None:
    """With two workers, messages come to one of them through the log. Publishers are of a user
    each, by turns."""
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-o", workers=workers) as bus,
        administer(bus) as admin,
        ExitStack() as stack,
    ):
        many = [stack.enter_context(connect_as(bus, STRANGER)) for _ in range(SUBSCRIBERS)]
        victims = [
            stack.enter_context(connect_as(bus, FIRST_VICTIM + number % publishers))
            for number in range(max(publishers, workers))
        ]
        for client in (*many, *victims):
            client.control(b"!/notices/on")
            client.sub(b"a")
            client.sync()
        for client in many:
            attach_filter(client.sock)
        seen = [[0, 0] for _ in many]  # received, and lost
        for round_number in range(ROUNDS):
            for number in range(MESSAGES):
                victims[number % publishers].pub(b"a", b"%d" % number)
            received = [client.sync() for client in victims]  # all is published then
            for packets, client in zip(received, victims, strict=True):
                packets += client.sync()
            assert received == received[:1] * len(victims), round_number
            expected = [b"MSG a\0%d" % number for number in range(MESSAGES)]
            assert sorted(received[0]) == sorted(expected)
            for count, client in zip(seen, many, strict=True):
                take(count, client)
        assert {sum(count) for count in seen} == {ROUNDS * MESSAGES}
        left_out = admin.ask("stats")["traffic"]["discarded"]["fan-out"]
        assert left_out == sum(lost for _, lost in seen) > 0


def test_publishers_do_not_owe_for_each_other() -> None:
    """Users who publish their first message while another's messages are left out: it reaches some
    clients, as many as a burst allows."""
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-o", workers=1) as bus,
        ExitStack() as stack,
    ):
        many = [stack.enter_context(connect_as(bus, STRANGER)) for _ in range(SUBSCRIBERS)]
        victim = stack.enter_context(connect_as(bus, FIRST_VICTIM))
        others = [stack.enter_context(connect_as(bus, OTHER - number)) for number in range(OTHERS)]
        for client in many:
            client.sub(b"a")
            client.sync()
            attach_filter(client.sock)
        with stopped(worker_pids(bus)[0]):
            for number in range(MESSAGES):
                victim.pub(b"a", b"%d" % number)
            for number, other in enumerate(others):
                other.pub(b"a", b"other %d" % number)
        for client in (victim, *others):
            client.sync()
        received = [client.sync() for client in many]
        assert sum(map(len, received)) < SUBSCRIBERS * (MESSAGES + OTHERS) / 2, "few were left out"
        for number in range(OTHERS):
            assert any(b"MSG a\0other %d" % number in packets for packets in received), number


def test_secret_messages_to_their_process_are_left_out() -> None:
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-o") as bus,
        administer(bus) as admin,
        ExitStack() as stack,
    ):
        many = [stack.enter_context(connect_as(bus, STRANGER)) for _ in range(SUBSCRIBERS)]
        victim = stack.enter_context(connect_as(bus, FIRST_VICTIM))
        key = many[0].whoami() + b"/a"
        for client in many:
            client.control(b"!/notices/on")
            client.sub(key)
            client.sync()
            attach_filter(client.sock)
        seen = [[0, 0] for _ in many]  # received, and lost
        for _ in range(MESSAGES):
            victim.pub(key, b"")
        victim.sync()
        for count, client in zip(seen, many, strict=True):
            take(count, client)
        assert {sum(count) for count in seen} == {MESSAGES}
        left_out = admin.ask("stats")["traffic"]["discarded"]["fan-out"]
        assert left_out == sum(lost for _, lost in seen) > 0


def take(count: list[int], client: RawClient) -> None:
    """Count what a subscriber has received, and what it was told that it lost."""
    for packet in client.sync():
        if packet.startswith(LOST):
            count[1] += int(packet.removeprefix(LOST))
        else:
            assert packet.startswith(b"MSG ")
            count[0] += 1
