"""The commands of the tutorial work as written, and print what the text shows."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bus import PROJECT
from tests.support.threads import wait_until

TUTORIAL = (PROJECT / "docs/tutorial.md").read_text()
TIMEOUT_S = 30.0
UNTIL_IT_LISTENS = """until sbusctl subs --json | grep -q '"rooms/"'; do :; done"""


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
        self.second.send_signal(signal.SIGINT)
        printed, _ = self.second.communicate(timeout=TIMEOUT_S)
        self.second = None
        return printed


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    two = Terminals(tmp_path)
    yield two
    if (tmp_path / "bus.pid").exists():
        os.kill(int((tmp_path / "bus.pid").read_text()), signal.SIGTERM)
    if two.second is not None:
        two.second.kill()
        two.second.communicate(timeout=TIMEOUT_S)


def test_the_tutorial(terminals: Terminals, tmp_path: Path) -> None:
    parts = re.split(r"\n```(\w*)\n(.*?)```\n", TUTORIAL, flags=re.DOTALL)
    shown = []
    for before, language, block in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        paragraph = before.strip().rpartition("\n\n")[2]
        introduction = re.split(r"[.;]\s", paragraph)[-1]
        if language == "python":
            (name,) = re.findall(r"`(\w+\.py)`", introduction)
            (tmp_path / name).write_text(block)
        elif language == "console":
            typed = "\n".join(re.findall(r"^\$ (.*)$", block, re.MULTILINE))
            typed = typed.replace("/tmp/bus", f"{tmp_path}/bus")
            typed = typed.replace("sleep 1", UNTIL_IT_LISTENS)
            if "second terminal" in introduction:
                terminals.in_second(typed)
            else:
                assert_shown(block, terminals.first(typed))
        elif not language:
            shown.append(block)
            assert terminals.close() == block
    assert shown == ["lamps/3/state on\nlamps/4/state off\n"]
    assert not (tmp_path / "bus").exists()


def assert_shown(block: str, printed: str) -> None:
    """The lines of the tutorial are there; numbers and widths may differ, and who alice is."""
    for line in block.split("\n"):
        if line and not line.startswith(("$", "...")) and "alice" not in line:
            words = re.escape(line.removesuffix("...").strip().replace("/tmp/bus", "@"))
            pattern = re.sub(r"\d+", r"\\d+", re.sub(r"(\\ )+", r" +", words)).replace("@", ".*")
            assert re.search(f"^ *{pattern}", printed, re.MULTILINE), f"{line!r} not in {printed}"
