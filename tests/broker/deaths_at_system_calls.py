"""A worker dies before each of its system calls: `python -m tests.broker.deaths_at_system_calls`.

Each run has a bus of its own, with the same few clients on two workers. They publish, subscribe,
ask, connect and leave, while strace traces the first worker. The first run finds out which system
calls it makes. Each of the others kills it before one of them: strace counts the calls of every
name by themselves, so they are numbered by name. The last run of a name is over before that call.
Whatever the call, what `checked_load` checks has to hold.
"""

import argparse
import random
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count, islice
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

from tests.support.bus import Bus, running_bus
from tests.support.checked_load import CheckedClient, CheckedLoad
from tests.support.processes import is_replaced, worker_pids
from tests.support.raw_client import WHOAMI
from tests.support.threads import wait_until
from tests.support.tracing import traced

CLIENTS = 6
ROUNDS = 3
MESSAGES = 3
ANSWER_SECONDS_MAX = 20.0


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


def run(*strace_options: str, chance: int = 0) -> bool:
    """Trace the first worker, and check what clients see. Returns whether it was killed."""
    with (
        TemporaryDirectory() as directory,
        running_bus(Path(directory), workers=2) as bus,
        closing(CheckedLoad(bus, CLIENTS, random.Random(chance))) as load,
    ):
        pid = worker_pids(bus)[0]
        with traced([pid], *strace_options):
            use(bus, load)
        is_killed = is_zombie_or_gone(pid)
        if is_killed:
            wait_until(partial(is_replaced, bus, 0, pid), "the worker is replaced")
        load.finish()
        load.check(deaths=is_killed)
    return is_killed


def is_zombie_or_gone(pid: int) -> bool:
    try:
        return b") Z " in Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def count_calls() -> Counter[str]:
    """How many system calls of each name the first worker makes in a run without deaths."""
    with NamedTemporaryFile() as log:
        run(f"-o{log.name}")
        return Counter(re.findall(r"^(\w+)\(", Path(log.name).read_text(), re.MULTILINE))


def dies_at(name: str, call: int) -> bool:
    """Kill the first worker before its call of this name and number, from 1 on. False: it made
    fewer such calls."""
    inject = f"inject={name}:signal=KILL:when={call}"
    try:
        return run("-o/dev/null", "-e", inject, chance=call)
    except BaseException as error:
        error.add_note(f"before {name}, number {call}")
        raise


def run_all(jobs: int) -> Counter[str]:
    """Die before every system call, in so many runs at a time; returns how many deaths each name
    had.

    Raises the error of the first run that fails, with a note that names the call.
    """
    deaths: Counter[str] = Counter()
    with ThreadPoolExecutor(jobs) as pool:
        for name in count_calls():
            calls = count(1)
            while died := sum(pool.map(partial(dies_at, name), islice(calls, jobs))):
                deaths[name] += died
    return deaths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    deaths = run_all(parser.parse_args().jobs)
    names = ", ".join(f"{name} {number}" for name, number in deaths.most_common())
    sys.stdout.write(
        f"{deaths.total()} deaths, each before another system call ({names}): all promises kept\n"
    )


if __name__ == "__main__":
    main()
