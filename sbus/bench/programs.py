"""The C programs: compiled for this run, started, spoken to by lines, ended in all cases.

Every wait has a deadline, and leaving a `with` block ends what was started in it. This module does
not know what the programs do.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sbus.bench import proc
from sbus.bench.failures import BenchmarkFailed
from sbus.bench.figures import parse_report

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
SOURCES = {
    "relay": ("relay.c", "peer.c"),
    "stream": ("stream.c", "traffic.c", "peer.c"),
    "ping": ("ping.c", "peer.c"),
    "flood": ("flood.c", "ledger.c", "peer.c"),
    "horde": ("horde.c", "peer.c"),
}
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0
COMPLAINT_CHARACTERS_MAX = 2_000


def compile_programs(directory: Path) -> None:
    """Each program into `directory`, by its name; raises BenchmarkFailed with gcc's complaint."""
    for name, sources in SOURCES.items():
        command = ["gcc", *FLAGS, "-o", str(directory / name), *(str(HERE / s) for s in sources)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        except FileNotFoundError as error:
            raise BenchmarkFailed("the load generators are in C: gcc is needed") from error
        except subprocess.CalledProcessError as error:
            raise BenchmarkFailed(f"gcc refuses {name}:\n{error.stderr}") from error


@contextlib.contextmanager
def pinned(cpus: frozenset[int] | None) -> Iterator[None]:
    """Whatever is started inside runs on these CPUs only; None: wherever this process may."""
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise BenchmarkFailed(f"this process may not use CPU {sorted(cpus)}") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Child:
    """A running program with pipes; `log` is the file its stderr goes to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def complaint(self) -> str:
        """The end of what it wrote to stderr."""
        return self.log.read_text(errors="replace")[-COMPLAINT_CHARACTERS_MAX:].strip()

    def read_line(self, seconds_max: float) -> str | None:
        """Next line of its stdout, None at the end of it; raises BenchmarkFailed at the deadline.

        Reads byte by byte, so that nothing is left in a buffer where a later wait cannot see it.
        """
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        deadline = time.monotonic() + seconds_max
        line = bytearray()
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                text = f"{self.name} said nothing for {seconds_max:.0f} s"
                raise BenchmarkFailed(f"{text}\n{self.complaint()}".strip())
            byte = os.read(fd, 1)
            if not byte:
                return None
            line += byte
        return line.decode()

    def wait_for_report(self, word: str, seconds_max: float) -> dict[str, int]:
        """Fields of its next line, which begins with `word`; raises BenchmarkFailed otherwise."""
        line = self.read_line(seconds_max)
        if line is None:
            status = self.process.wait(STOP_SECONDS_MAX)
            raise BenchmarkFailed(f"{self.name} ended with status {status}: {self.complaint()}")
        said, fields = parse_report(line)
        if said != word:
            raise BenchmarkFailed(f"{self.name} said {said!r}, not {word!r}")
        return fields

    def tell(self, command: str) -> None:
        """Give it one command line; it answers with a report."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer's absence tells why
            os.write(self.process.stdin.fileno(), f"{command}\n".encode())

    def ask(self, command: str, word: str, seconds_max: float) -> dict[str, int]:
        """Give it one command line and wait for the answer, as `wait_for_report`."""
        self.tell(command)
        return self.wait_for_report(word, seconds_max)


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str],
    directory: Path,
    cpus: frozenset[int] | None,
    uid: int | None = None,
) -> Iterator[Child]:
    """A child that is gone, with its descendants, when the block ends; of user `uid`, if given.

    Python programs in it find this source tree, from wherever the benchmark is run.
    """
    log = directory / f"{name}.stderr"
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open("wb") as stderr, pinned(cpus):
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else (),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    with process:
        try:
            yield Child(name, process, log)
        finally:
            _end(process)


@contextlib.contextmanager
def generator(
    name: str,
    arguments: Sequence[object],
    directory: Path,
    cpus: frozenset[int] | None,
    uid: int | None = None,
) -> Iterator[Child]:
    """A compiled program that has said `ready`; `uid` as for `running`."""
    command = [str(directory / name), *(str(argument) for argument in arguments)]
    with running(name, command, directory, cpus, uid) as child:
        child.wait_for_report("ready", START_SECONDS_MAX)
        yield child


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end; whatever of its family is left after a while is killed."""
    if process.poll() is not None:
        return
    family = proc.process_tree(process.pid)
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
