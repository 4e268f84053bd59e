"""How long clients wait when their worker dies: `python -m tests.broker.death_pauses --help`.

The only worker is killed, all clients request something, and the time until each has its reply is
measured from the kill.
"""

import argparse
import os
import select
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.support.admin import administer
from tests.support.bus import Bus, running_bus
from tests.support.processes import is_replaced, worker_pids
from tests.support.quotas import HARDLY_LIMITED
from tests.support.raw_client import RawClient

_SECONDS_MAX = 60.0
_EARLY_SECONDS = 1.1
"""A worker that dies earlier has its successor later."""
_WHOAMI = b"CMSG !/cred/whoami"


class Pause(NamedTuple):
    """Times from a worker's death to the replies of its clients."""

    first_ms: float
    median_ms: float
    last_ms: float


def measure_pause(directory: Path, *, clients: int, subscriptions: int) -> Pause:
    """Of a bus with so many clients, each of which has so many subscriptions."""
    with running_bus(directory, *HARDLY_LIMITED, workers=1) as bus, ExitStack() as stack:
        started_at = time.monotonic()
        connected = []
        for number in range(clients):
            client = stack.enter_context(bus.connect())
            for pattern in range(subscriptions):
                client.sub(b"%d/%d" % (number, pattern))
            client.whoami()
            connected.append(client)
        time.sleep(max(0.0, started_at + _EARLY_SECONDS - time.monotonic()))
        pause = _kill_and_measure(bus, connected)
        with administer(bus) as admin:
            found = admin.ask("stats")["traffic"]["subscriptions"]
        assert found == clients * subscriptions, f"{found} subscriptions are left"
        return pause


def _kill_and_measure(bus: Bus, clients: list[RawClient]) -> Pause:
    pid = worker_pids(bus)[0]
    poller = select.epoll()
    for client in clients:
        poller.register(client, select.EPOLLIN | select.EPOLLONESHOT)
    killed_at = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    for client in clients:
        client.send(_WHOAMI)
    pauses_ms: list[float] = []
    while len(pauses_ms) < len(clients):
        ready = poller.poll(_SECONDS_MAX)
        assert ready, f"{len(clients) - len(pauses_ms)} clients get no reply"
        now = time.perf_counter()
        pauses_ms += [(now - killed_at) * 1_000] * len(ready)
    poller.close()
    for client in clients:
        assert client.receive().startswith(_WHOAMI)
    assert is_replaced(bus, 0, pid), "the worker did not die"
    return Pause(pauses_ms[0], statistics.median(pauses_ms), pauses_ms[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--subscriptions", type=int, default=10, help="of each client")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    sys.stdout.write("clients  subscriptions  first ms  median ms  last ms\n")
    for clients in options.clients:
        for _ in range(options.repetitions):
            with tempfile.TemporaryDirectory() as directory:
                pause = measure_pause(
                    Path(directory), clients=clients, subscriptions=options.subscriptions
                )
            times = "  ".join(f"{it:9.1f}" for it in pause)
            sys.stdout.write(f"{clients:7}  {options.subscriptions:13}  {times}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
