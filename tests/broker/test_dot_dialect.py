"""The older dialect, against a reference matcher (and `tests/protocol/03-dot-dialect.t`)."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sbus.protocol.keys import DOT
from tests.support.bus import SBUSCTL, SBUSCTL_SECONDS_MAX, Bus, running_bus, sbusd_environment
from tests.support.raw_client import RawClient
from tests.unit.routing.specification import matches


@pytest.fixture
def dot_bus(tmp_path: Path) -> Iterator[Bus]:
    with running_bus(tmp_path, "--dialect", "dot") as bus:
        yield bus


def received_so_far(client: RawClient) -> list[bytes]:
    """Everything up to an own message, which is this dialect's only barrier."""
    barrier = b"barrier.%d" % client.fileno()
    client.sub(barrier)
    client.pub(barrier, b"")
    client.unsub(barrier)
    before: list[bytes] = []
    while (packet := client.receive()) != b"MSG %b\0" % barrier:
        assert packet, f"the end of the connection after {before}"
        before.append(packet)
    return before


def connected(bus: Bus, stack: ExitStack, count: int) -> list[RawClient]:
    clients = [stack.enter_context(bus.connect()) for _ in range(count)]
    for client in clients:
        assert received_so_far(client) == []
    return clients


def test_patterns_match_by_dots(dot_bus: Bus) -> None:
    patterns = [
        *(b"", b"a", b"a.b", b"a.", b"a.*", b"*", b"*.", b"*.b", b"a.*.c.", b"a.b*", b"a/b", b"a/"),
        *(b"a/*", b".", b"x!", b"a.!", b"a.!.b"),
    ]
    keys = [
        *(b"a", b"a.b", b"a.bcd", b"a.b.c", b"a.b.c.d.e", b"a.b.c.", b"a.", b".", b"", b"a/b"),
        *(b"a/b.c", b"x!", b"a.!", b"a.!.b", b"\xff.*"),
    ]
    with ExitStack() as stack:
        publisher, *subscribers = connected(dot_bus, stack, 1 + len(patterns))
        for subscriber, pattern in zip(subscribers, patterns, strict=True):
            subscriber.sub(pattern)
            assert received_so_far(subscriber) == []
        for key in keys:
            publisher.pub(key, b"payload")
        received_so_far(publisher)
        for subscriber, pattern in zip(subscribers, patterns, strict=True):
            expected = [b"MSG %b\0payload" % key for key in keys if matches(pattern, key, DOT)]
            received = received_so_far(subscriber)
            assert [packet for packet in received if b"barrier" not in packet] == expected, pattern


def test_one_order_and_the_subscription_point(dot_bus: Bus) -> None:
    """An own message is a barrier for everybody's messages."""
    with ExitStack() as stack:
        subscriber, publisher = connected(dot_bus, stack, 2)
        for number in range(200):
            subscriber.sub(b"a.*")
            assert received_so_far(subscriber) == []
            publisher.pub(b"a.b", b"%d" % number)
            assert received_so_far(publisher) == []
            assert received_so_far(subscriber) == [b"MSG a.b\0%d" % number]
            subscriber.unsub(b"a.*")
            assert received_so_far(subscriber) == []
            publisher.pub(b"a.b", b"nobody")
            assert received_so_far(publisher) == []


def test_the_short_pub_names_the_dialect_as_what_may_be_wrong(tmp_path: Path) -> None:
    with running_bus(tmp_path, "--dialect", "dot") as bus:
        result = subprocess.run(
            [*SBUSCTL, "pub", "k", "x"],
            env={**sbusd_environment(), "SBUS_ADDRESS": bus.address},
            capture_output=True,
            timeout=SBUSCTL_SECONDS_MAX,
            check=False,
        )
    assert result.returncode == 1
    assert b"sbusctl --dialect dot" in result.stderr
