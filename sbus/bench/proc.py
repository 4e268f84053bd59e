"""What the kernel reports of processes and of the machine, mostly in /proc.

CPU time is read from each process's own CPU clock, which other processes may read too: user and
system time together, in nanoseconds, ended threads included. (`utime` and `stime` in /proc are as
coarse as a clock tick.)
"""

import os
import platform
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sbus.bench import BenchmarkFailed

PROC = Path("/proc")
CLOCK_OF_PROCESS = 2
"""The low three bits of the id of a process's CPU clock; above them stands its inverted pid."""


@dataclass(frozen=True)
class Machine:
    """Where the figures were measured."""

    cpu_model: str
    cores: int
    kernel: str
    python: str
    load_average: float

    def __str__(self) -> str:
        return (
            f"{self.cpu_model}, {self.cores} cores, load {self.load_average:.2f}, "
            f"Linux {self.kernel}, Python {self.python}"
        )


def parse_cpu_model(cpuinfo: str) -> str:
    """The first `model name`, or `unknown CPU`: not every architecture has that line."""
    found = re.search(r"^model name\s*: (.*)", cpuinfo, re.MULTILINE)
    return found[1] if found else "unknown CPU"


def process_tree(root: int) -> list[int]:
    """Pids of a process and of all its descendants, itself first, but for those that have ended."""
    children: dict[int, list[int]] = {}
    living = set()
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="backslashreplace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while the others were read
        # The command's name, in parentheses, may contain any character.
        state, parent = stat.rpartition(")")[2].split()[:2]
        if state != "Z":
            living.add(int(entry.name))
            children.setdefault(int(parent), []).append(int(entry.name))
    family = [root] if root in living else []
    for pid in family:
        family += children.get(pid, [])
    return family


def run_time_ns(pid: int) -> int:
    """CPU time of a process so far; raises BenchmarkFailed when it has ended."""
    try:
        return time.clock_gettime_ns(~pid << 3 | CLOCK_OF_PROCESS)
    except OSError as error:
        raise BenchmarkFailed(f"no CPU time of process {pid}: {error}") from error


def run_times_ns(pids: Iterable[int]) -> dict[int, int]:
    return {pid: run_time_ns(pid) for pid in pids}


def read_of_process(pid: int, name: str) -> str:
    """A file in /proc of a live process; raises BenchmarkFailed when it is gone."""
    try:
        return (PROC / str(pid) / name).read_text(errors="backslashreplace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise BenchmarkFailed(f"no figures of process {pid}: {error}") from error


def proportional_memory_bytes(pid: int) -> int:
    """Memory of a live process, in which what n processes share counts one n-th."""
    found = re.search(r"^Pss:\s*(\d+) kB", read_of_process(pid, "smaps_rollup"), re.MULTILINE)
    if found is None:
        raise BenchmarkFailed("this kernel does not report proportional memory")
    return 1024 * int(found[1])


def context_switches(pid: int) -> int:
    """How often the main thread of a live process was given a CPU."""
    found = re.findall(r"^\w+_ctxt_switches:\s*(\d+)", read_of_process(pid, "status"), re.MULTILINE)
    return sum(map(int, found))


def this_machine() -> Machine:
    return Machine(
        cpu_model=parse_cpu_model((PROC / "cpuinfo").read_text()),
        cores=os.cpu_count() or 1,
        kernel=platform.release(),
        python=platform.python_version(),
        load_average=os.getloadavg()[0],
    )
