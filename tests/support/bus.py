"""A real bus in its own processes, for the length of a `with` block.

The daemon runs in the foreground, and is ready when it has closed its standard output. `bus_of`
starts it as users do; `running_bus` forks it, which is faster, unless it is given a command. At the
end it gets SIGTERM, and then it must end with status 0, take all of its processes with it and leave
no socket behind.
"""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sbus.bench.proc import process_tree
from sbus.limits import OPERATION_CPU_SECONDS_MAX
from tests.support.client_sockets import check_sockets
from tests.support.ending_process import unless_it_ends
from tests.support.forked_sbusd import ForkedSbusd
from tests.support.raw_client import RawClient

PROJECT = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
BARE_SBUSD = (sys.executable, "-P", "-m", "sbus.cli.sbusd")
RUN_AS_SELF = ("--run-as", str(os.geteuid()))
"""For a bus that stays the user's who runs the tests, also if that is root."""
SBUSD = (*BARE_SBUSD, *RUN_AS_SELF)
SBUSCTL = (sys.executable, "-m", "sbus.cli.sbusctl")
SBUSCTL_SECONDS_MAX = 120.0
SLOWER_MAX = 10
"""How many times its bound of CPU time an operation may take: processors are slow, or the host of
a virtual machine takes them away. What nothing bounds takes longer still."""


def sbusd_environment() -> dict[str, str]:
    """The environment in which `SBUSD` finds this source tree, from any directory."""
    inherited = os.environ.get("PYTHONPATH")
    # Only root may look at the descriptors of another process, unless it can be dumped.
    dumpable = {} if os.geteuid() == 0 else {"SBUS_DUMPABLE": "1"}
    return {
        **os.environ,
        **dumpable,
        "PYTHONPATH": os.pathsep.join([str(PROJECT), *([inherited] if inherited else [])]),
    }


def sbusd_with_few_descriptors(count: int) -> tuple[str, ...]:
    """The command of a bus whose processes may each have this many open files."""
    limited = (
        "import os, resource, sys;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2);"
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    return (sys.executable, "-c", limited, str(count), *SBUSD)


Process = subprocess.Popen[bytes] | ForkedSbusd


class Bus:
    """A running bus: its `address`, and `process`, the one that was started."""

    def __init__(self, address: str, process: Process, stderr: Path) -> None:
        self.address = address
        self.process = process
        self._stderr = stderr

    def stderr_text(self) -> str:
        """Everything that any process of the bus has written to standard error so far."""
        return self._stderr.read_text(errors="backslashreplace")

    def connect(self) -> RawClient:
        return RawClient(self.address)

    def sbusctl(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """What `sbusctl` does with this bus, which takes at most `SBUSCTL_SECONDS_MAX`."""
        return subprocess.run(
            [*SBUSCTL, "-a", self.address, *words],
            env=sbusd_environment(),
            input=stdin,
            capture_output=True,
            timeout=SBUSCTL_SECONDS_MAX,
            check=False,
        )

    def pids(self) -> list[int]:
        """All processes of the bus, the started one first; empty when that one has ended."""
        return process_tree(self.process.pid)


@contextmanager
def running_bus(
    directory: Path,
    *options: str,
    workers: int = 2,
    placement: str = "spread",
    command: Sequence[str] | None = None,
) -> Iterator[Bus]:
    """Run a bus on a socket in `directory` with more `options`; see this module's title.

    By default its clients are spread over the workers, so that messages cross between them. Tests
    of how a bus starts give `SBUSD` for its command. If the block ended the process itself,
    it also checks the exit status.
    """
    address = str(directory / "bus.socket")
    serving = ("--workers", str(workers), "--placement", placement)
    arguments = ("-f", "-a", address, *serving, *options)
    with bus_of(directory, *arguments, address=address, command=command) as bus:
        yield bus
        was_running = bus.process.poll() is None
    left = [path for path in (address, f"{address}.admin") if os.path.lexists(path)]
    assert not (was_running and left), f"the bus left {left} behind"


@contextmanager
def bus_of(
    directory: Path,
    *arguments: str,
    address: str | None = None,
    command: Sequence[str] | None = SBUSD,
    pass_fds: Sequence[int] = (),
    upgraded_to: Sequence[str] = BARE_SBUSD[1:],
) -> Iterator[Bus]:
    """Run a bus with just these arguments, `-f` among them.

    Clients reach it at `address`; None when it prints where. Its standard error is kept in
    `directory`. With no command, it is forked, gets `pass_fds` as if from a service manager, and
    has Python run `upgraded_to` for an upgrade.
    """
    stderr = directory / "bus.stderr"
    stolen_before_s = stolen_seconds()
    process: Process
    with stderr.open("wb") as errors:
        if command is None:
            own = [*RUN_AS_SELF, *arguments]
            process = ForkedSbusd(own, errors, sbusd_environment(), pass_fds, upgraded_to)
        else:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=sbusd_environment(),
                pass_fds=pass_fds,
            )
    try:
        printed = wait_for_end_of_output(process, START_SECONDS_MAX).decode()
        bus = Bus(address or printed.removesuffix("\n"), process, stderr)
        # An output that ended because its process did is not readiness.
        assert has_released_output(process.pid), f"the bus did not start:\n{bus.stderr_text()}"
        yield bus
        check_sockets(bus.pids())
        stop(bus)
        stolen_s = stolen_seconds() - stolen_before_s
        assert not (slow := slow_operations(bus, stolen_s)), "\n".join(slow)
    finally:
        kill_tree(process)


def refusal(*command: str, cwd: Path | None = None, pass_fds: Sequence[int] = ()) -> str:
    """The line that a bus prints which cannot start."""
    done = subprocess.run(
        command,
        cwd=cwd,
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        env=sbusd_environment(),
        capture_output=True,
        timeout=START_SECONDS_MAX,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b""), done
    assert done.stderr.count(b"\n") == 1
    return done.stderr.decode()


def stolen_seconds() -> float:
    """Time that the hypervisor gave to others. The kernel counts it as CPU time of what was running
    when that began."""
    steal = Path("/proc/stat").read_text().split(maxsplit=9)[8]
    return int(steal) / os.sysconf("SC_CLK_TCK")


def slow_operations(bus: Bus, stolen_s: float) -> list[str]:
    """The lines of the log about operations that needed far more CPU time than they may."""
    return [
        found[0]
        for found in re.finditer(
            r"slow operation of .*: (\w+).* took .* s, CPU time ([\d.]+) s", bus.stderr_text()
        )
        if float(found[2]) > SLOWER_MAX * OPERATION_CPU_SECONDS_MAX[found[1]] + stolen_s
    ]


def has_released_output(pid: int) -> bool:
    """Whether the process runs and has /dev/null for its input and output."""
    links: set[str] = set()
    with unless_it_ends(pid):
        links = {os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1)}
    return links == {os.devnull}


def wait_for_end_of_output(process: Process, timeout_s: float) -> bytes:
    """What the process prints, until every holder of its standard output has closed it."""
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    printed = b""
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select([process.stdout], [], [], left_s)
        assert readable, f"standard output still open after {timeout_s} s; so far {printed!r}"
        if not (chunk := os.read(process.stdout.fileno(), 65_536)):
            process.stdout.close()
            return printed
        printed += chunk


def await_file(path: str | Path, process: subprocess.Popen[bytes]) -> None:
    """Return as soon as the starting process has made this file."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while not os.path.lexists(path):
        assert time.monotonic() < deadline, f"{path} was not made in {START_SECONDS_MAX} s"
        ended = process.poll() is not None
        assert not ended or os.path.lexists(path), f"{process.args!r} ended without making {path}"


def stop(bus: Bus, signum: signal.Signals = signal.SIGTERM) -> None:
    """End the bus as a service manager does, and see that no process of it is left."""
    if bus.process.poll() is not None:
        return
    pids = bus.pids()
    bus.process.send_signal(signum)
    status = bus.process.wait(STOP_SECONDS_MAX)
    assert status == 0, f"the bus ended with status {status}:\n{bus.stderr_text()}"
    for pid in pids:
        assert wait_until_gone(pid, STOP_SECONDS_MAX), f"process {pid} of {pids} outlived the bus"


def wait_until_gone(pid: int, timeout_s: float) -> bool:
    """Whether the process, of any parent, ends within this time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


def kill_tree(process: Process) -> None:
    """Kill every process of this bus that still runs, whatever the test did."""
    for pid in reversed(process_tree(process.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(STOP_SECONDS_MAX)
    if process.stdout is not None:
        process.stdout.close()
