"""A worker without a heartbeat is killed and replaced, wherever it was when it stopped.

The worst case is a worker that stopped while it held the lock of the shared memory: until it is
gone, no client can publish to another worker.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.support.bus import running_bus, wait_until_gone
from tests.support.processes import (
    clients_on_each,
    is_locking,
    wait_until_stopped,
    worker_pids,
)
from tests.support.raw_client import RawClient
from tests.support.threads import meanwhile, wait_until
from tests.support.traffic import Stream, flowing

LIMIT = ("--limit", "worker_silence_seconds_max=1")
GONE_SECONDS_MAX = 60.0
TRIES_MAX = 5_000


def test_healthy_workers_are_left_alone(tmp_path: Path) -> None:
    """Idle or busy: their heartbeat is faster than the limit allows it to be."""
    with running_bus(tmp_path, *LIMIT, workers=3) as bus, clients_on_each(bus, 3) as places:
        (publisher,), (subscriber,), (stays,) = places
        before = worker_pids(bus)
        with flowing(Stream(publisher, subscriber, b"k")):
            # Nothing can tell that something will not happen; four of its periods must do.
            assert not wait_until_gone(before[2], 4.0)
        assert worker_pids(bus) == before
        stays.whoami()


def stop_within_the_lock(pid: int) -> None:
    """Stop a busy worker again and again until it is there."""
    for _ in range(TRIES_MAX):
        os.kill(pid, signal.SIGSTOP)
        wait_until_stopped(pid)
        if is_locking(pid):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.001)  # it has to run, or it is silent for too long
    raise AssertionError(f"none of {TRIES_MAX} stops was within the lock")


def publish(client: RawClient, stop: threading.Event) -> None:
    """Keep the worker of this client busy."""
    while not stop.is_set():
        client.pub(b"busy", b"")


def read(client: RawClient, stop: threading.Event) -> None:
    while not stop.is_set():
        with suppress(TimeoutError):
            client.receive(timeout_s=0.1)


def test_a_worker_stopped_while_it_holds_the_lock(tmp_path: Path) -> None:
    with running_bus(tmp_path, *LIMIT, workers=2) as bus, clients_on_each(bus, 2, 4) as places:
        (from_0, on_0, _, _), (from_1, on_1, probe, _) = places
        before = worker_pids(bus)
        on_0.sub(b"busy")
        on_1.sub(b"busy")
        with meanwhile(partial(publish, from_0), partial(read, on_0)):
            stop_within_the_lock(before[0])
            probe.control(b"!/cred/whoami")
            assert wait_until_gone(before[0], GONE_SECONDS_MAX)
        assert probe.receive().startswith(b"CMSG !/cred/whoami\0"), "the other worker is stuck"
        from_0.whoami()  # its worker has a successor, and has published everything
        on_1.sync()
        on_1.sub(b"k")
        on_1.sync()
        from_1.pub(b"k", b"")
        assert on_1.receive() == b"MSG k\0"
        wait_until(lambda: 0 in worker_pids(bus), "it is replaced")
        assert worker_pids(bus)[1] == before[1], "the one that only waited was killed"
