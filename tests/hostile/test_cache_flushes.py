"""A user makes a worker forget its routes when many messages may be appended for it.

A subscription that other workers need not hear of makes a worker look its routes up again, while
publishers on other workers still know theirs. So it has to look up all that is appended for it
then, and its other clients wait for that.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path

import pytest

from tests.support.bus import running_bus
from tests.support.cpu_time import cpu_seconds, least_cpu_seconds
from tests.support.flood import send_until_held
from tests.support.pattern_bombs import (
    BOMBS,
    KEYS,
    MEMBER_KEYS,
    connect_as,
    subscribe_to_bombs,
    subscribe_to_members,
)
from tests.support.processes import stopped, worker_pids
from tests.support.raw_client import RawClient
from tests.support.threads import meanwhile
from tests.support.users import STRANGER, directory_for_everybody, needs_root

pytestmark = needs_root

Subscribe = Callable[[Sequence[RawClient]], None]

VICTIM = STRANGER - 1
CLIENTS = 4
MEMBERS = 150
CHEAP_MESSAGES = 2_000
CHEAP = bytes(16_000)
"""Of many bytes, because a worker measures how fast it walks in bytes."""
CPU_SECONDS_MAX = 0.5
MEMBERS_CPU_SECONDS_MAX = 0.03
"""Until another user is answered. With bombs it was 3 s when nothing bounded it; with many members
it was 0.06 s, and is 0.002 s."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with directory_for_everybody() as entered_by_all:
        yield entered_by_all


class Reader:
    """Reads what comes to some clients, and forgets it."""

    def __init__(self, clients: Sequence[RawClient]) -> None:
        self._clients = clients

    def __call__(self, stop: threading.Event) -> None:
        while not stop.wait(0.001):
            for client in self._clients:
                self._drain(client.sock)

    def _drain(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        with suppress(BlockingIOError):
            while True:
                sock.recv(len(CHEAP))


@pytest.mark.parametrize(
    ("count", "subscribe", "keys", "seconds_max"),
    [
        (CLIENTS, subscribe_to_bombs, KEYS, CPU_SECONDS_MAX),
        (MEMBERS, subscribe_to_members, MEMBER_KEYS, MEMBERS_CPU_SECONDS_MAX),
    ],
)
def test_another_user_is_answered_soon_after_a_flush(
    directory: Path, count: int, subscribe: Subscribe, keys: list[bytes], seconds_max: float
) -> None:
    """Patterns that all match in different ways, or few that many clients have."""
    least = least_cpu_seconds(lambda: wait_for(directory, count, subscribe, keys), seconds_max)
    assert least < seconds_max


def wait_for(directory: Path, count: int, subscribe: Subscribe, keys: list[bytes]) -> float:
    """CPU time of the worker until it answers another user."""
    with running_bus(directory, "-o") as bus, ExitStack() as stack:
        clients = [stack.enter_context(connect_as(bus, STRANGER)) for _ in range(2 * count)]
        (publisher, witness, *_), listeners = clients[::2], clients[1::2]
        _, victim = [stack.enter_context(connect_as(bus, VICTIM)) for _ in range(2)]
        worker = worker_pids(bus)[1]
        subscribe(listeners)
        listeners[0].sub(b"cheap")
        listeners[0].sync()
        # Both workers know the routes, and the second one walks so fast that much may be appended.
        for key in keys:
            publisher.pub(key, b"")
        with meanwhile(Reader(listeners)):
            for _ in range(CHEAP_MESSAGES):
                publisher.pub(b"cheap", CHEAP)
            publisher.sync()
        # A client of the same worker has this pattern, so the other worker does not hear of it.
        listeners[-1].sub(BOMBS[0])
        listeners[-1].sync()
        with stopped(worker):
            send_until_held(publisher, cycle(b"MSG %b\0" % key for key in keys), [witness])
            before = cpu_seconds(worker)
            victim.control(b"!/cred/whoami")
        assert victim.receive(60).startswith(b"CMSG !/cred/whoami\0")
        return cpu_seconds(worker) - before
