"""What the README shows works when it is pasted."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bus import PROJECT, Bus, sbusd_environment
from tests.support.terminals import TIMEOUT_S, two_terminals

README = (PROJECT / "README.md").read_text()


def blocks(language: str, address: str) -> list[str]:
    """The blocks of a language, for a bus at this address."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [block.replace("/tmp/bus", address) for block in found]


def test_the_commands(tmp_path: Path) -> None:
    first, second = (block for block in blocks("sh", f"{tmp_path}/bus") if "SBUS_ADDRESS=" in block)
    start, subscribe = first.strip().rsplit("\n", 1)
    publish, end = second.strip().rsplit("\n", 1)
    with two_terminals(tmp_path) as terminals:
        assert terminals.first(start) == ""
        terminals.in_second(subscribe)
        assert re.fullmatch(r"!/cred/\d+/\d+/\d+\n", terminals.first(publish))
        assert terminals.close() == "lamps/3/state on\n"
        terminals.first(end)


def test_the_python_program_ends_with_ctrl_c(bus: Bus) -> None:
    (program,) = blocks("python", bus.address)
    environment = {**sbusd_environment(), "SBUS_ADDRESS": bus.address}
    command = [sys.executable, "-u", "-c", program]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "b'lamps/3/state' b'on'\n"
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=TIMEOUT_S) == ("", "")
    assert running.returncode == 0


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_the_c_program_prints_into_a_pipe(tmp_path: Path, bus: Bus) -> None:
    (program,) = blocks("c", bus.address)
    (tmp_path / "program.c").write_text(program)
    build = ["gcc", "-Wall", "-Wextra", "-Werror", "-o", "program", "program.c"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=TIMEOUT_S)
    with subprocess.Popen([tmp_path / "program"], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline() == "lamps/3/state: on\n"
        finally:
            running.kill()
