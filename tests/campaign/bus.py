"""The bus of a run: a service of a manager that keeps its clients, from this tree or others."""

import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path

from sbus.bench.proc import process_tree
from tests.campaign.plan import Plan
from tests.support.admin import Admin
from tests.support.bus import PROJECT, RUN_AS_SELF, wait_until_gone
from tests.support.kept_service import KeptService
from tests.support.processes import kill_at_once, process_name

_MIXED = Path(__file__).with_name("sbusd.py")
_ORDINARY = "from sbus.cli.sbusd.command import main\nmain()\n"
_WORKER = re.compile(r"sbusd-worker-(\d+)")
HUNG_SECONDS_MAX = 120.0
"""The only bound of waits: a busy machine does not reach it. No worker is killed for its silence
before a wait for it has failed."""
_LIMITS = {
    "worker_silence_seconds_max": 10 * HUNG_SECONDS_MAX,
    "user_connections_per_second_max": 100_000,
    "user_connections_max": 4_096,
    "fan_out_us_max": 1_000_000,
    "user_messages_per_second_max": 1_000_000,
    "backlog_bytes_max": 1 << 28,
    "user_backlog_bytes_max": 1 << 30,
    "bus_backlog_bytes_max": 1 << 31,
    "socket_buffer_bytes": 20_000,
}
"""So that only the number of messages in a backlog may cost messages."""


class CampaignBus(KeptService):
    """Starts with `start`, and ends with `stop` or `end`. It runs the first of these trees."""

    def __init__(self, directory: Path, plan: Plan, trees: Sequence[Path] = (PROJECT,)) -> None:
        self._trees = cycle(trees)
        self._program = directory / "program.py"
        self._main = _MIXED.read_text() if plan.step == "mixed" else _ORDINARY
        self.config = directory / "sbus.toml"
        self.bus_address = str(directory / "bus.socket")
        self.main_pid = 0
        step = "compiled" if plan.step == "mixed" else plan.step
        prefix = ("env", f"SBUS_STEP={step}")
        limits = {**_LIMITS, "backlog_messages_max": plan.backlog}
        arguments = [
            *(
                sys.executable,
                "-P",
                str(self._program),
                *RUN_AS_SELF,
                "-f",
                "-r",
                "-o",
                "-a",
                self.bus_address,
            ),
            *("--placement", "spread", "--dialect", plan.dialect, "--config", str(self.config)),
            *(word for name, number in limits.items() for word in ("--limit", f"{name}={number}")),
        ]
        if plan.descriptors:
            prlimit = shutil.which("prlimit") or ""
            arguments[:0] = [prlimit, f"--nofile={plan.descriptors}:{plan.descriptors}"]
        super().__init__(directory, arguments, prefix)
        self.configure(plan.workers)
        self.run_next_tree()

    def run_next_tree(self) -> None:
        """What the bus starts from now on is the program of the next tree, by turns."""
        first = f"import sys\nsys.path.insert(0, {str(next(self._trees))!r})\n"
        self._program.write_text(first + self._main)

    def configure(self, workers: int, packets: int = 64) -> None:
        """What the bus reads at its next start, upgrade or reload."""
        text = f"[bus]\nworkers = {workers}\n[limits]\nbatch_packets_max = {packets}\n"
        self.config.write_text(text)

    def start(self, timeout_s: float = HUNG_SECONDS_MAX) -> None:
        super().start(timeout_s)

    def next(self, timeout_s: float = 60.0) -> dict[str, str]:
        message = super().next(timeout_s)
        self.main_pid = int(message.get("MAINPID", self.main_pid))
        return message

    def administer(self) -> Admin:
        return Admin(f"{self.bus_address}.admin", HUNG_SECONDS_MAX)

    def workers(self) -> dict[int, int]:
        """The process ids of the workers of the bus that serves."""
        found = {pid: _WORKER.fullmatch(process_name(pid)) for pid in process_tree(self.main_pid)}
        return {int(name[1]): pid for pid, name in found.items() if name}

    def pids(self) -> list[int]:
        """Of all processes that have the address in their command lines."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if self.bus_address.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def kill_front(self) -> None:
        """Kill the front alone; returns when all other processes have ended, too."""
        with self.administer() as admin:  # the manager may not have heard of the last upgrade
            front = admin.ask("version")["pid"]
        pids = self.pids()
        os.kill(front, signal.SIGKILL)
        self._await_end(pids)

    def kill(self) -> None:
        """Kill all processes at once."""
        pids = self.pids()
        kill_at_once(pids)
        self._await_end(pids)

    def stop(self) -> None:
        """End the bus as a service manager does."""
        pids = self.pids()
        with suppress(ProcessLookupError):
            os.kill(self.main_pid, signal.SIGTERM)
        self._await_end(pids)

    def _await_end(self, pids: Sequence[int]) -> None:
        for pid in pids:
            assert wait_until_gone(pid, HUNG_SECONDS_MAX), f"process {pid} does not end"
        if self._process is not None:
            self._process.wait(HUNG_SECONDS_MAX)
