"""Two terminals in which commands of a document run as they are written."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.bus import PROJECT
from tests.support.processes import signal_asleep
from tests.support.threads import wait_until

TIMEOUT_S = 60.0


class Terminals:
    """Two terminals in one directory; commands in the first run to their end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        programs = folder / "programs"
        programs.mkdir()
        python = f'"{sys.executable}"'
        for name, command in (
            ("sbusd", f"{python} -m sbus.cli.sbusd"),
            ("sbusctl", f"{python} -m sbus.cli.sbusctl"),
            ("python", python),
        ):
            (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (programs / name).chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "SBUS_ADDRESS": f"{folder}/bus",
        }
        self.second: subprocess.Popen[str] | None = None

    def first(self, commands: str) -> str:
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", commands],
            cwd=self._folder,
            env=self._environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
        ).stdout

    def in_second(self, command: str) -> None:
        """Start it, and come back when it has subscribed."""
        self.close()
        self.second = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        subscribed = f'"pid": {self.second.pid},'
        wait_until(lambda: subscribed in self.first("sbusctl subs --json"), f"{command} listens")

    def close(self) -> str:
        """Press Ctrl-C in the second; returns what it has printed."""
        if self.second is None:
            return ""
        signal_asleep(self.second.pid, signal.SIGINT)
        printed, _ = self.second.communicate(timeout=TIMEOUT_S)
        self.second = None
        return printed


@contextmanager
def two_terminals(folder: Path) -> Iterator[Terminals]:
    """Two, and at the end the bus `bus` in their directory is ended."""
    two = Terminals(folder)
    try:
        yield two
    finally:
        if (folder / "bus.pid").exists():
            os.kill(int((folder / "bus.pid").read_text()), signal.SIGTERM)
        if two.second is not None:
            two.second.kill()
            two.second.communicate(timeout=TIMEOUT_S)
