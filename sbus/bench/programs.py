"""The C programs: compiled for a run, started, controlled by lines of text, and always ended.

Every wait has a deadline, and leaving a `with` block ends what was started in it.
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

from sbus.bench import BenchmarkFailed, proc
from sbus.bench.figures import parse_report

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
SOURCES = {
    "relay": ("relay.c", "client.c"),
    "flood": ("flood.c", "ledger.c", "client.c"),
    "load": ("peers/load.c", "peers/wires.c", "client.c"),
}
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0
ERROR_CHARACTERS_MAX = 2_000


def compile_programs(directory: Path) -> None:
    """Compile each program into `directory`; raises BenchmarkFailed with gcc's error output."""
    for name, sources in SOURCES.items():
        compile_program(directory, name, sources)


def compile_program(
    directory: Path, name: str, sources: Sequence[str], libraries: Sequence[str] = ()
) -> None:
    """Compile one; `libraries` as in `-lzmq`."""
    files = [str(HERE / source) for source in sources]
    command = ["gcc", *FLAGS, "-o", str(directory / name), *files, *libraries]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    except FileNotFoundError as error:
        raise BenchmarkFailed("gcc is needed: the load generators are C programs") from error
    except subprocess.CalledProcessError as error:
        raise BenchmarkFailed(f"gcc does not compile {name}:\n{error.stderr}") from error


@contextlib.contextmanager
def pinned(cpus: frozenset[int] | None) -> Iterator[None]:
    """What is started inside runs on these CPUs only; None: where this process may run."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, before if cpus is None else cpus)
    except OSError as error:
        raise BenchmarkFailed(f"this process may not use CPU {sorted(cpus or before)}") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def environment() -> dict[str, str]:
    """The variables of this process, and this source tree where Python looks first. A bus lets its
    user read how much memory it takes."""
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SBUS_DUMPABLE": "1"}


@dataclass(frozen=True)
class Child:
    """A running program with pipes; `log` is the file its stderr goes to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def error_output(self) -> str:
        """The end of what it wrote to stderr."""
        return self.log.read_text(errors="replace")[-ERROR_CHARACTERS_MAX:].strip()

    def read_line(self, seconds_max: float) -> str | None:
        """The next line of its stdout, None at the end; raises BenchmarkFailed at the deadline.

        Reads byte by byte, so that no buffer hides anything from a later wait.
        """
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        readable = select.poll()  # select() knows no descriptors above 1,023
        readable.register(fd, select.POLLIN)
        deadline = time.monotonic() + seconds_max
        line = bytearray()
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not readable.poll(left * 1_000):
                text = f"{self.name} said nothing for {seconds_max:.0f} s"
                raise BenchmarkFailed(f"{text}\n{self.error_output()}".strip())
            byte = os.read(fd, 1)
            if not byte:
                return None
            line += byte
        return line.decode()

    def wait_for_report(self, word: str, seconds_max: float) -> dict[str, int]:
        """The fields of its next line; raises BenchmarkFailed unless that begins with `word`."""
        line = self.read_line(seconds_max)
        if line is None:
            status = self.process.wait(STOP_SECONDS_MAX)
            raise BenchmarkFailed(f"{self.name} ended with status {status}: {self.error_output()}")
        said, fields = parse_report(line)
        if said != word:
            raise BenchmarkFailed(f"{self.name} said {said!r}, not {word!r}")
        return fields

    def tell(self, command: str) -> None:
        """Send one command line; the program answers with a report."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then `wait_for_report` says why
            os.write(self.process.stdin.fileno(), f"{command}\n".encode())

    def ask(self, command: str, word: str, seconds_max: float) -> dict[str, int]:
        """Send one command line, and wait for the report."""
        self.tell(command)
        return self.wait_for_report(word, seconds_max)


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str],
    directory: Path,
    cpus: frozenset[int] | None,
) -> Iterator[Child]:
    """A child that is gone with its descendants when the block ends.

    Python programs find this source tree, from whatever directory the benchmark is run if
    they are started with `-P`, and keep their byte code in `directory`.
    """
    log = directory / f"{name}.stderr"
    variables = {**environment(), "PYTHONPYCACHEPREFIX": str(directory / "bytecode")}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # to compile takes longer than to start
    with log.open("wb") as stderr, pinned(cpus):
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=variables,
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
) -> Iterator[Child]:
    """A compiled program that has said `ready`."""
    command = [str(directory / name), *(str(argument) for argument in arguments)]
    with running(name, command, directory, cpus) as child:
        child.wait_for_report("ready", START_SECONDS_MAX)
        yield child


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate it; after a while, kill what is left of it and its descendants."""
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
