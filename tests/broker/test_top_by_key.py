"""`top --by key` on a real bus: each message counts once, under its prefix."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sbus.cli.top.loads import KeyLoad
from sbus.cli.top.sources import KeySource
from sbus.client.admin import AdminConnection
from tests.support.bus import Bus
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until


@pytest.fixture
def clients(bus: Bus) -> Iterator[list[RawClient]]:
    with ExitStack() as stack:
        yield [stack.enter_context(bus.connect()) for _ in range(4)]


def test_messages_are_counted_by_the_beginning_of_their_keys(
    bus: Bus, clients: list[RawClient]
) -> None:
    one, two, three, four = clients
    for client in (one, two):
        client.sub(b"lamps/")
    three.sub(b"")
    for client in clients:
        client.whoami()
    with AdminConnection(bus.address) as admin:
        source = KeySource(admin, "/", 1)
        assert source.look() is None
        for publisher, key, count in (
            (four, b"lamps/1/state", 30),
            (one, b"lamps/2", 20),
            (two, b"lamps", 3),
            (three, b"nobody/\x1b/\xff", 2),
            (three, b"!/cred////secret", 1),
        ):
            for _ in range(count):
                publisher.pub(key, b"12345")
        for client in clients:
            client.sync()
        found: dict[str | None, list[float]] = {}

        def has_all() -> bool:
            look = source.look()
            assert look is not None
            assert not look.missed
            for row in look.rows:
                assert isinstance(row, KeyLoad)
                counts = found.setdefault(row.prefix, [0.0, 0.0, 0.0])
                rates = (
                    row.messages_in_per_second,
                    row.bytes_in_per_second,
                    row.delivered_per_second,
                )
                for place, rate in enumerate(rates):
                    counts[place] += rate * look.seconds
            return round(sum(counts[0] for counts in found.values())) == 56

        wait_until(has_all, "all messages were counted")
    lamps = 30 * len(b"MSG lamps/1/state\x0012345") + 20 * len(b"MSG lamps/2\x0012345")
    assert {prefix: [round(n) for n in counts] for prefix, counts in found.items()} == {
        "lamps/": [50, lamps, 3 * 50],
        "lamps": [3, 3 * len(b"MSG lamps\x0012345"), 3],
        "nobody/": [2, 2 * len(b"MSG nobody/\x1b/\xff\x0012345"), 2],
        "!/": [1, len(b"MSG !/cred////secret\0"), 0],
    }
