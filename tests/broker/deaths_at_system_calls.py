"""A worker dies before each of its system calls: `python -m tests.broker.deaths_at_system_calls`.

Each run has a bus of its own, with the same few clients on two workers. They publish, subscribe,
ask, connect and leave, while strace counts the system calls of the first worker and kills it
instead of one. The next run kills it instead of a later one, and the last run is over before that.
Whatever the call, what `checked_load` checks has to hold.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.support.bus import Bus, running_bus
from tests.support.checked_load import CheckedClient, CheckedLoad
from tests.support.processes import is_replaced, worker_pids
from tests.support.raw_client import WHOAMI
from tests.support.threads import wait_until

CLIENTS = 6
ROUNDS = 3
MESSAGES = 3
ANSWER_SECONDS_MAX = 20.0


@contextmanager
def killed_at(pid: int, call: int) -> Iterator[subprocess.Popen[bytes]]:
    """The process is killed instead of its system call of this number, from 1 on."""
    inject = f"inject=all:signal=KILL:when={call}"
    strace = subprocess.Popen(["strace", "-qq", "-o/dev/null", "-e", inject, f"-p{pid}"])
    status = Path(f"/proc/{pid}/status")
    try:
        wait_until(lambda: f"TracerPid:\t{strace.pid}\n" in status.read_text(), "strace traces it")
        yield strace
    finally:
        strace.terminate()
        strace.wait()


def wait_for_answers(load: CheckedLoad) -> None:
    """Every client asks, and waits for its reply, or for the notice that it was lost."""
    before = [answers(client) for client in load.clients]
    for client in load.clients:
        client.request()
    ends_at = time.monotonic() + ANSWER_SECONDS_MAX
    while any(answers(it) == old for it, old in zip(load.clients, before, strict=True)):
        assert time.monotonic() < ends_at, "a client gets neither its reply nor a notice"
        load.receive(0.1)


def answers(client: CheckedClient) -> int:
    return client.replies + client.unprocessed


def use(bus: Bus, load: CheckedLoad) -> None:
    """Have the workers do all that clients usually want."""
    for number in range(ROUNDS):
        for client in load.clients:
            for _ in range(MESSAGES):
                client.publish()
            client.change_subscriptions(b"other/%d" % number)
        wait_for_answers(load)
        visit(bus)


def visit(bus: Bus) -> None:
    """Connect, subscribe, ask and leave. A death takes one request at most, so it asks twice."""
    with bus.connect() as visitor:
        visitor.sub(b"visited")
        visitor.control(WHOAMI)
        visitor.whoami()


def run_once(directory: Path, call: int) -> bool:
    """Kill the first worker instead of this call, and check what clients see. False: it made fewer
    calls."""
    with running_bus(directory, workers=2) as bus:
        load = CheckedLoad(bus, CLIENTS, random.Random(call))
        pid = worker_pids(bus)[0]
        try:
            with killed_at(pid, call) as strace:
                use(bus, load)
                has_died = strace.poll() is not None
            if has_died:
                wait_until(partial(is_replaced, bus, 0, pid), "the worker is replaced")
            load.finish()
            load.check(deaths=has_died)
        finally:
            load.close()
    return has_died


def run_all(directory: Path, first: int, step: int) -> int:
    """Run with a death at every `step`-th call; returns how many deaths there were."""
    deaths = 0
    while run_once(directory, first + step * deaths):
        deaths += 1
    return deaths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--first", type=int, default=1, help="the first of the calls")
    parser.add_argument("--step", type=int, default=1, help="from one of them to the next")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        deaths = run_all(Path(directory), **vars(options))
    sys.stdout.write(f"{deaths} deaths, each before another system call: all promises kept\n")


if __name__ == "__main__":
    main()
