"""A user makes a worker forget its routes when many messages may be appended for it.

A subscription that other workers need not hear of makes a worker look its routes up again, while
publishers on other workers still know theirs. So it has to look up all that is appended for it
then, and its other clients wait for that.
"""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path

import pytest

from tests.support.bus import running_bus
from tests.support.flood import send_until_held
from tests.support.pattern_bombs import (
    BOMBS,
    KEYS,
    connect_as,
    cpu_seconds,
    subscribe_to_bombs,
)
from tests.support.processes import stopped, worker_pids
from tests.support.raw_client import RawClient
from tests.support.threads import meanwhile
from tests.support.users import STRANGER, directory_for_everybody, needs_root

pytestmark = needs_root

VICTIM = STRANGER - 1
CLIENTS = 4
CHEAP_MESSAGES = 2_000
CHEAP = bytes(16_000)
"""Of many bytes, because a worker measures how fast it walks in bytes."""
CPU_SECONDS_MAX = 0.5
"""Until another user is answered; it was 3 s when nothing bounded it."""


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


def test_another_user_is_answered_soon_after_a_flush(directory: Path) -> None:
    with running_bus(directory, "-o") as bus, ExitStack() as stack:
        clients = [stack.enter_context(connect_as(bus, STRANGER)) for _ in range(2 * CLIENTS)]
        (publisher, witness, *_), listeners = clients[::2], clients[1::2]
        _, victim = [stack.enter_context(connect_as(bus, VICTIM)) for _ in range(2)]
        worker = worker_pids(bus)[1]
        subscribe_to_bombs(listeners)
        listeners[0].sub(b"cheap")
        listeners[0].sync()
        # Both workers know the routes, and the second one walks so fast that much may be appended.
        for key in KEYS:
            publisher.pub(key, b"")
        with meanwhile(Reader(listeners)):
            for _ in range(CHEAP_MESSAGES):
                publisher.pub(b"cheap", CHEAP)
            publisher.sync()
        # A client of the same worker has this pattern, so the other worker does not hear of it.
        listeners[-1].sub(BOMBS[0])
        listeners[-1].sync()
        with stopped(worker):
            send_until_held(publisher, cycle(b"MSG %b\0" % key for key in KEYS), [witness])
            before = cpu_seconds(worker)
            victim.control(b"!/cred/whoami")
        assert victim.receive(60).startswith(b"CMSG !/cred/whoami\0")
        assert cpu_seconds(worker) - before < CPU_SECONDS_MAX
