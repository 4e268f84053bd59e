"""The processes of a bus, seen from outside: their roles and their open descriptors.

A worker is known by its name in /proc, `sbusd-worker-N`, and so is the fork server,
`sbusd-forkserv`.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.support.admin import administer
from tests.support.bus import Bus
from tests.support.ending_process import unless_it_ends
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until

_WORKER = "sbusd-worker-"
REST_SECONDS = 0.1


def process_name(pid: int) -> str:
    """What a process calls itself; nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="backslashreplace").removesuffix("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def worker_pids(bus: Bus) -> dict[int, int]:
    """The process id of every worker that runs, by its number."""
    names = {pid: process_name(pid) for pid in bus.pids()}
    return {
        int(name.removeprefix(_WORKER)): pid
        for pid, name in names.items()
        if name.startswith(_WORKER)
    }


def closers(bus: Bus) -> list[int]:
    return [pid for pid in bus.pids() if process_name(pid) == "sbusd-closer"]


def serving_pids(bus: Bus) -> set[int]:
    """The front and the workers; other processes may come and go."""
    return {bus.process.pid, *worker_pids(bus).values()}


def is_replaced(bus: Bus, worker: int, old: int) -> bool:
    """Whether a worker runs that has this number and is not the `old` process."""
    return worker_pids(bus).get(worker, old) != old


def fork_server_pid(bus: Bus) -> int:
    (pid,) = [pid for pid in bus.pids() if process_name(pid) == "sbusd-forkserv"]
    return pid


def kill_at_once(pids: Iterable[int]) -> None:
    """Kill processes, none of which has time to notice that others have ended. The service manager,
    or the kernel where they asked for that, may kill the last ones first."""
    every = tuple(pids)
    for pid in every:
        os.kill(pid, signal.SIGSTOP)
    for pid in every:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def open_descriptors(pid: int) -> int:
    """How many descriptors a process has open; 0 when it has ended."""
    names: list[str] = []
    with unless_it_ends(pid):
        names = os.listdir(f"/proc/{pid}/fd")
    return len(names)


def descriptors(bus: Bus) -> dict[int, int]:
    """The open descriptors of all processes of the bus, by process id."""
    return {pid: open_descriptors(pid) for pid in bus.pids()}


def descriptors_at_rest(bus: Bus) -> dict[int, int]:
    """`descriptors`, once every worker has begun to serve and they do not change: a bus that just
    started may still hand some over."""
    with administer(bus) as admin:
        admin.ask("explain", key="key")  # which all workers answer
    while True:
        counts = descriptors(bus)
        time.sleep(REST_SECONDS)
        if descriptors(bus) == counts:
            return counts


def wait_for_descriptors(bus: Bus, expected: dict[int, int]) -> None:
    """Wait until the processes of the bus have exactly this many open."""
    try:
        wait_until(lambda: descriptors(bus) == expected, "as many descriptors as before")
    except AssertionError as error:
        raise AssertionError(f"{descriptors(bus)} descriptors, not {expected}") from error


def wait_until_stopped(pid: int) -> None:
    wait_until(lambda: b") T " in Path(f"/proc/{pid}/stat").read_bytes(), "it has stopped")


def signal_asleep(pid: int, signum: int) -> None:
    """Send this to a Python program that waits, or is about to. Python learns of a signal that came
    in the moment before a system call only when the call returns."""
    wait_until(lambda: b") S " in Path(f"/proc/{pid}/stat").read_bytes(), "it waits")
    os.kill(pid, signum)


def is_locking(pid: int) -> bool:
    """Whether the process holds the lock of the shared memory. Source: proc_locks(5)."""
    locks = Path("/proc/locks").read_bytes().splitlines()
    return any(line.split()[1:5:3] == [b"FLOCK", b"%d" % pid] for line in locks)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process does nothing during the block. A worker holds no lock that the others need."""
    is_worker = process_name(pid).startswith(_WORKER)

    def stops_unlocked() -> bool:
        os.kill(pid, signal.SIGSTOP)
        wait_until_stopped(pid)
        if is_worker and is_locking(pid):
            os.kill(pid, signal.SIGCONT)
            return False
        return True

    try:
        wait_until(stops_unlocked, "it has stopped without the lock")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def several_clients(bus: Bus, count: int) -> Iterator[list[RawClient]]:
    """Clients that are connected during the block."""
    with ExitStack() as stack:
        clients = [stack.enter_context(bus.connect()) for _ in range(count)]
        for client in clients:
            client.whoami()
        yield clients


@contextmanager
def clients_with_notices(bus: Bus, count: int) -> Iterator[list[RawClient]]:
    """The same for clients that are told what goes wrong."""
    with several_clients(bus, count) as clients:
        for client in clients:
            client.control(b"!/notices/on")
            client.whoami()
        yield clients


@contextmanager
def clients_on_each(bus: Bus, workers: int, each: int = 1) -> Iterator[list[list[RawClient]]]:
    """`each` clients on every worker, [worker][number], of a bus without other clients.

    Relies on the order of new clients that the units of `Placement` assert.
    """
    with several_clients(bus, workers * each) as clients:
        yield [clients[worker::workers] for worker in range(workers)]
