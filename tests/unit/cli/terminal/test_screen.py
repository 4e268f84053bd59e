"""`sbusctl` on a terminal: width, colours, repainting, and the terminal restored at the end."""

import codecs
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.cells import cell_len

from sbus.protocol.admin_results import ClientsResult
from tests.support import admin_samples as sample
from tests.support.bus import sbusd_environment
from tests.support.fake_admin import FakeAdmin

TIMEOUT_S = 60.0
ROWS, WIDTH = 24, 80
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?3[0-7]m")
WHOLE_SCREEN, GIVEN_BACK = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[FakeAdmin]:
    clients = [sample.client(n, program="a program with a long name " * 5) for n in range(1, 101)]
    answers = {
        "clients": ClientsResult(clients=clients, next=None, unanswered=[]),
        "stats": sample.stats(),
    }
    with FakeAdmin(tmp_path, {**answers}) as admin:
        yield admin


class Terminal:
    """A terminal of 80 columns with a command in it."""

    def __init__(self, admin: FakeAdmin, *words: str, **environment: str) -> None:
        self._ours, self._theirs = os.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("4H", ROWS, WIDTH, 0, 0))
        self.mode = termios.tcgetattr(self._theirs)
        inherited = {
            name: value
            for name, value in sbusd_environment().items()
            if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sbus.cli.sbusctl", "-a", admin.bus_address, *words],
            env={**inherited, "TERM": "xterm-256color", **environment},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
        )
        self.output = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def _read(self, timeout_s: float) -> bool:
        """Take in what is there, waiting for it; whether anything came."""
        found = bool(select.select([self._ours], [], [], timeout_s)[0])
        if found:
            self.output += self._decoder.decode(os.read(self._ours, 100_000))
        return found

    def read_until(self, text: str) -> None:
        """Until this has been printed after what was read before."""
        seen_before = len(self.output)
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.output[seen_before:]:
            assert self._read(deadline - time.monotonic()), f"no {text!r}: {self.output!r}"

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def mode_now(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def end(self) -> int:
        """The exit status, when all that was printed has been read."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it does not end"
            self._read(0.01)
        while self._read(0):
            pass
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def terminal(admin: FakeAdmin, *words: str, **environment: str) -> Iterator[Terminal]:
    started = Terminal(admin, *words, **environment)
    try:
        yield started
    finally:
        started.close()


def test_lines_are_as_wide_as_the_terminal_and_colours_can_be_refused(admin: FakeAdmin) -> None:
    for environment in ({}, {"NO_COLOR": "1"}):
        with terminal(admin, "clients", **environment) as screen:
            assert screen.end() == 0
            assert bool(COLOUR.search(screen.output)) == (not environment)
            rows = CONTROL.sub("", screen.output).split("\r\n")
            assert len(rows) == 102
            assert {cell_len(row) for row in rows[1:-1]} == {WIDTH}
            assert all(row.endswith("…") for row in rows[1:-1])


def test_top_fills_the_screen_obeys_keys_and_restores_the_terminal(
    admin: FakeAdmin,
) -> None:
    with terminal(admin, "top", "--interval", "0.2") as screen:
        screen.read_until("BACKLOG")
        assert WHOLE_SCREEN in screen.output
        assert screen.mode_now() != screen.mode, "keys are read at once"
        assert "100 clients in" in screen.output
        screen.press("k")
        screen.read_until("\x1b[1;7mBACKLOG\x1b[0m")
        screen.press("q")
        assert screen.end() == 0
        assert GIVEN_BACK in screen.output
        assert screen.mode_now() == screen.mode


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_after_a_signal(admin: FakeAdmin, signum: signal.Signals) -> None:
    with terminal(admin, "top", "--interval", "0.2") as screen:
        screen.read_until("BACKLOG")
        screen.process.send_signal(signum)
        assert screen.end() == 128 + signum
        assert "Traceback" not in screen.output
        assert GIVEN_BACK in screen.output
        assert screen.mode_now() == screen.mode


def test_watch_repaints_below_the_cursor(admin: FakeAdmin) -> None:
    with terminal(admin, "stats", "--watch", "--interval", "0.1") as screen:
        screen.read_until("LEDGER")
        screen.read_until("LEDGER")
        assert WHOLE_SCREEN not in screen.output
        between = screen.output.split("LEDGER")[1]
        assert "\x1b[1A" in between, "the cursor goes back up"
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 130


def test_a_closed_output_is_no_error_message(admin: FakeAdmin) -> None:
    command = [sys.executable, "-m", "sbus.cli.sbusctl", "-a", admin.bus_address]
    with subprocess.Popen(
        [*command, "stats", "--watch", "--interval", "0.1"],
        env=sbusd_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 141
        assert process.stderr.read() == b""
