"""What is measured: the broker, and the relays it is held against, behind one interface.

Both listen on a socket in a directory of the run, are ready when they close their stdout, and are
ended by SIGTERM. This module does not know what is done with them.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from sbus.bench import proc
from sbus.bench.failures import BenchmarkFailed
from sbus.bench.programs import START_SECONDS_MAX, STOP_SECONDS_MAX, Child, running


@dataclass(frozen=True)
class Server:
    """Something that carries messages; `processes_min` guards against overlooking some of it."""

    address: str
    child: Child
    processes_min: int

    def pids(self) -> list[int]:
        """All of its processes; raises BenchmarkFailed when there are too few of them."""
        pids = proc.process_tree(self.child.process.pid)
        if self.child.process.poll() is not None or len(pids) < self.processes_min:
            raise BenchmarkFailed(
                f"{self.child.name} should have {self.processes_min} processes or more and has "
                f"{len(pids)}: {self.child.complaint()}"
            )
        return pids


Start = Callable[[], AbstractContextManager[Server]]
"""Starts a server; one and the same benchmark is run against what several of these start."""

PACE_LIFTED = "user_messages_per_second_max=1000000000"
"""A limit for a broker that is to be measured and not to be held back: all load is one user's."""


def relay(directory: Path, mode: str, cpus: frozenset[int] | None) -> Start:
    """The relay, `each` packet by itself or `drain`; compiled in `directory`."""
    command = [str(directory / "relay"), str(directory / "bus"), mode]
    return lambda: _serving("relay", command, directory, cpus, 1, -signal.SIGTERM)


def broker(
    directory: Path, workers: int, cpus: frozenset[int] | None, limits: Sequence[str] = ()
) -> Start:
    """The sbusd beside this module, with this interpreter: a front and its workers.

    `limits` are `NAME=VALUE` as for its `--limit`.
    """
    command = [sys.executable, "-m", "sbus.cli.sbusd", "-f"]
    command += ["-a", str(directory / "bus"), "--workers", str(workers)]
    for limit in limits:
        command += ["--limit", limit]
    return lambda: _serving("sbusd", command, directory, cpus, 1 + workers, 0)


@contextlib.contextmanager
def _serving(
    name: str,
    command: list[str],
    directory: Path,
    cpus: frozenset[int] | None,
    processes_min: int,
    status_when_stopped: int,
) -> Iterator[Server]:
    socket = directory / "bus"
    socket.unlink(missing_ok=True)
    with running(name, command, directory, cpus) as child:
        while child.read_line(START_SECONDS_MAX) is not None:
            pass
        if not socket.is_socket():
            child.process.wait(STOP_SECONDS_MAX)
            raise BenchmarkFailed(f"{name} does not start: {child.complaint()}")
        yield Server(str(socket), child, processes_min)
    status = child.process.returncode
    if status != status_when_stopped:
        raise BenchmarkFailed(f"{name} stopped with status {status}: {child.complaint()}")
