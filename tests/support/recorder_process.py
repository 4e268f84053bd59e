"""Recorders in processes of their own, and what they recorded.

A `Recorders` starts them quickly, by forking a process that has everything imported. What was
recorded is read as any program would. This module knows `sbusctl record`, its options and the
public way to read a recording, nothing of what goes on inside.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sbus.pipeline.store.reader import Recording, TableSnapshot, read
from tests.support.bus import PROJECT, sbusd_environment
from tests.support.service_manager import ServiceManager, service_manager


class Recorder:
    """A recorder that was started; `directory` is where it records."""

    def __init__(self, recorders: "Recorders", pid: int, stderr: Path) -> None:
        self.pid = pid
        self._recorders = recorders
        self._stderr = stderr

    def stderr_text(self) -> str:
        return self._stderr.read_text(errors="backslashreplace")

    def wait(self) -> int:
        """Its exit status, negative for a signal, once it has ended."""
        self._recorders.running.remove(self)
        return self._recorders.ask(self.pid)

    def stop(self) -> None:
        """End it as a service manager does; it must succeed."""
        os.kill(self.pid, signal.SIGTERM)
        status = self.wait()
        assert status == 0, f"the recorder ended with status {status}: {self.stderr_text()}"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL


class Recorders:
    """Starts recorders of one bus."""

    def __init__(
        self, process: "subprocess.Popen[str]", manager: ServiceManager, directory: Path
    ) -> None:
        self.running: list[Recorder] = []
        self._process = process
        self._manager = manager
        self._directory = directory
        self._count = 0

    def ask(self, question: object) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(question)}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def begin(
        self,
        address: str,
        directory: Path,
        *options: str,
        patterns: Sequence[str] = (),
        file_bytes_max: int | None = None,
    ) -> Recorder:
        """Start a recorder; whether it can record remains to be seen."""
        self._count += 1
        stderr = self._directory / f"recorder-{self._count}.stderr"
        stderr.touch()
        pid = self.ask(
            {
                "arguments": ["-a", address, "record", *options, str(directory), *patterns],
                "stderr": str(stderr),
                "notify": self._manager.address,
                "file_bytes_max": file_bytes_max,
            }
        )
        recorder = Recorder(self, pid, stderr)
        self.running.append(recorder)
        return recorder

    def start(self, address: str, directory: Path, *options: str, **more: Any) -> Recorder:
        """The same; what is published from now on is recorded."""
        self._manager.discard()
        recorder = self.begin(address, directory, *options, **more)
        message = self._manager.next_but_watchdog()
        assert message.get("READY") == "1", f"{message}: {recorder.stderr_text()}"
        return recorder


@contextmanager
def recorders(directory: Path) -> Iterator[Recorders]:
    """Whatever was started has ended when the block has."""
    command = [sys.executable, "-m", "tests.support.recorder_template"]
    with (
        service_manager(directory) as manager,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=sbusd_environment(),
            cwd=PROJECT,
        ) as process,
    ):
        started = Recorders(process, manager, directory)
        try:
            yield started
        finally:
            for recorder in list(started.running):
                recorder.kill()


def snapshot(directory: Path, table: str = "messages") -> TableSnapshot:
    """What there is now, of the only recorder."""
    (found,) = Recording(directory).tables(table).values()
    return found


def recorded(directory: Path, table: str = "messages") -> list[dict[str, Any]]:
    """All rows in the order of their offsets, which are consecutive."""
    whole = snapshot(directory, table)
    rows = rows_of(whole, whole.earliest, whole.end)
    assert [row["offset"] for row in rows] == list(range(whole.earliest, whole.end))
    return rows


def rows_of(table: TableSnapshot, first: int, end: int) -> list[dict[str, Any]]:
    """The rows between two offsets, in order."""
    rows = [
        row
        for piece in table.plan(first, end)
        for batch in read(piece)
        for row in batch.to_pylist()
    ]
    return sorted(rows, key=lambda row: int(row["offset"]))
