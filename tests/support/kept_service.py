"""A service that is killed and started again with what it has stored, as systemd does."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.support.bus import START_SECONDS_MAX, kill_tree, sbusd_environment
from tests.support.descriptor_store import START_WITH_DESCRIPTORS, StoringManager


class KeptService(StoringManager):
    """One service, with a directory of its own; `prefix` is a command that executes others."""

    def __init__(self, directory: Path, command: Sequence[str], prefix: Sequence[str] = ()) -> None:
        directory.mkdir()
        super().__init__(directory)
        self.errors = directory / "stderr"
        self._command = command
        self._prefix = prefix
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._has_ended = False
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._has_ended:
            with self._lock:
                message = self.next(0.01)
            if message.get("READY") == "1":
                self._is_ready.set()

    def start(self, timeout_s: float = START_SECONDS_MAX) -> None:
        """Start it, for the first time or again; returns when it is ready."""
        with self._lock:
            self.discard()
            self._is_ready.clear()
            self.drop_ended()
            pairs = [(name, fd) for name, fds in self.stored.items() for fd in fds]
            fds = [str(fd) for _, fd in pairs]
            with self.errors.open("ab") as errors:
                self._process = subprocess.Popen(
                    [
                        *self._prefix,
                        *(sys.executable, "-c", START_WITH_DESCRIPTORS, str(len(fds)), *fds),
                        *self._command,
                    ],
                    env=sbusd_environment() | self.variables(pairs),
                    pass_fds=[fd for _, fd in pairs],
                    stdin=subprocess.DEVNULL,
                    stderr=errors,
                )
        assert self._is_ready.wait(timeout_s), self.errors.read_text()

    def kill(self) -> None:
        """Kill it with SIGKILL, and all its processes."""
        assert self._process is not None
        kill_tree(self._process)

    def end(self) -> None:
        """It will not be started again."""
        if self._process is not None:
            self.kill()
        self._has_ended = True
        self._thread.join()
        self.close()
        assert "Traceback" not in self.errors.read_text(), self.errors.read_text()
