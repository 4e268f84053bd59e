"""What is measured, the broker and the relays it is compared with, and the settings of a run.

Broker and relay look alike from outside: both listen on a socket in the directory of the run,
close their stdout when they are ready, and end on SIGTERM.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sbus.bench import BenchmarkFailed, proc
from sbus.bench.figures import format_cpus
from sbus.bench.programs import (
    START_SECONDS_MAX,
    STOP_SECONDS_MAX,
    Child,
    generator,
    running,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Server:
    """A running broker or relay; `processes_min` guards against overlooking some of it."""

    address: str
    child: Child
    processes_min: int

    def pids(self) -> list[int]:
        """All of its processes; raises BenchmarkFailed when there are too few of them."""
        pids = proc.process_tree(self.child.process.pid)
        if self.child.process.poll() is not None or len(pids) < self.processes_min:
            raise BenchmarkFailed(
                f"{self.child.name} should have at least {self.processes_min} processes and has "
                f"{len(pids)}: {self.child.error_output()}"
            )
        return pids


Start = Callable[[], AbstractContextManager[Server]]
"""Starts a server; a benchmark runs the same load against several of these."""

SBUSD = (sys.executable, "-P", "-m", "sbus.cli.sbusd")

PACE_LIFTED = "user_messages_per_second_max=1000000000"
"""The rate limit does not apply to a broker that is measured: one user causes all of the load."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Where a benchmark runs, and how often. CPUs that are None: any."""

    directory: Path
    """Holds the compiled programs, and everything that a run leaves behind."""
    repetitions: int = 1
    broker_cpus: frozenset[int] | None = None
    load_cpus: frozenset[int] | None = None
    progress: Callable[[str], None] = lambda line: None
    """Gets a line of progress now and then."""
    limits: Sequence[str] = (PACE_LIFTED,)
    """Of every broker, `NAME=VALUE` each."""

    def shown(self) -> dict[str, str | int | float]:
        """For the head of a result."""
        return {
            "repetitions": self.repetitions,
            "broker_cpu": format_cpus(self.broker_cpus),
            "load_cpu": format_cpus(self.load_cpus),
        }

    def rounds(self, cases: Mapping[str, T]) -> Iterator[tuple[str, str, T]]:
        """Every case once, then every case again: a disturbance of the machine disturbs all alike.

        Yields a label for progress, the name, and the case.
        """
        for repetition in range(self.repetitions):
            for name, case in cases.items():
                yield f"{repetition + 1}/{self.repetitions} {name}", name, case

    def load(self, name: str, *arguments: object) -> AbstractContextManager[Child]:
        """A load generator, ready, on its CPUs."""
        return generator(name, arguments, self.directory, self.load_cpus)

    def relay(self, mode: str) -> Start:
        """The relay, which forwards `each` packet by itself or `drain`s sockets."""
        command = [str(self.directory / "relay"), str(self.directory / "bus"), mode]
        return lambda: self._serving("relay", command, 1, -signal.SIGTERM)

    def broker(
        self,
        workers: int,
        *more_limits: str,
        placement: str = "spread",
        options: Sequence[str] = (),
    ) -> Start:
        """sbusd, run by this interpreter: a front and its workers. By default its
        clients are spread over these, so that a benchmark decides which of them share a worker."""
        command = [*SBUSD, "-f", "-a", str(self.directory / "bus"), "--workers", str(workers)]
        command += ["--placement", placement, *options]
        for limit in (*self.limits, *more_limits):
            command += ["--limit", limit]
        return lambda: self._serving("sbusd", command, 1 + workers, 0)

    @contextlib.contextmanager
    def _serving(
        self, name: str, command: list[str], processes_min: int, status_when_stopped: int
    ) -> Iterator[Server]:
        socket = self.directory / "bus"
        socket.unlink(missing_ok=True)
        with running(name, command, self.directory, self.broker_cpus) as child:
            while child.read_line(START_SECONDS_MAX) is not None:
                pass
            if not socket.is_socket():
                child.process.wait(STOP_SECONDS_MAX)
                raise BenchmarkFailed(f"{name} does not start: {child.error_output()}")
            yield Server(str(socket), child, processes_min)
        status = child.process.returncode
        if status != status_when_stopped:
            raise BenchmarkFailed(f"{name} stopped with status {status}: {child.error_output()}")
