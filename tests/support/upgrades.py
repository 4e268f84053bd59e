"""Buses whose program is replaced while a test uses them.

The process that a test started ends with the first upgrade; the one that serves then is found by
its process id, and ended with the bus.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sbus.bench.proc import process_tree
from sbus.client.streams import EventStream, MessageStream
from sbus.errors import Disconnected
from tests.support.admin import administer
from tests.support.bus import (
    PROJECT,
    RUN_AS_SELF,
    STOP_SECONDS_MAX,
    Bus,
    bus_of,
    wait_until_gone,
)
from tests.support.client_sockets import check_sockets

_PROGRAM = """
import os, pathlib, sys, time
exec(pathlib.Path({script!r}).read_text())
from sbus.cli.sbusd.command import main
main()
"""


def serving_pid(bus: Bus) -> int:
    with administer(bus) as admin:
        pid = admin.ask("version")["pid"]
    assert isinstance(pid, int)
    return pid


def upgrade(bus: Bus) -> dict[str, Any]:
    """Have the program of the bus started again; what came of it."""
    with administer(bus) as admin:
        admin.sock.settimeout(STOP_SECONDS_MAX)
        result = admin.ask("upgrade")
    assert isinstance(result, dict)
    check_sockets(process_tree(serving_pid(bus)))
    return result


def upgrade_fault(bus: Bus) -> str:
    """Why an upgrade is not possible, after which the same process serves."""
    before = serving_pid(bus)
    with administer(bus) as admin:
        admin.sock.settimeout(STOP_SECONDS_MAX)
        code, text = admin.fault("upgrade")
    assert code == "failed"
    assert serving_pid(bus) == before
    return text


def read_to_end(stream: EventStream | MessageStream) -> tuple[list[object], str]:
    """What a stream still has, and why it ends."""
    items: list[object] = []
    try:
        while True:
            items += stream.receive_many(STOP_SECONDS_MAX)
    except Disconnected as end:
        return items, str(end)


def reason_of_end(stream: EventStream | MessageStream) -> str:
    return read_to_end(stream)[1]


class ChangingBus:
    """A bus whose command line or program is another one after the next upgrade."""

    bus: Bus

    def __init__(self, directory: Path) -> None:
        self._config = directory / "sbus.toml"
        self._script = directory / "new_program.py"

    def set_workers(self, workers: int) -> None:
        self.configure({"workers": workers})

    def configure(self, options: dict[str, Any]) -> None:
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in options.items()]
        self._config.write_text("[bus]\n" + "".join(lines))

    def run_first(self, script: str) -> None:
        """Python code that programs run which the bus starts from now on."""
        self._script.write_text(script)

    def run_tree(self, tree: Path) -> None:
        """The sources of the programs that the bus starts from now on."""
        self.run_first(f"sys.path.insert(0, {str(tree)!r})")


@contextmanager
def changing_bus(
    directory: Path, *options: str, workers: int = 2, tree: Path = PROJECT
) -> Iterator[ChangingBus]:
    """A bus whose clients are spread over its workers, and which serves at the end of the block;
    nothing of it is left behind that."""
    with (
        ending_bus(directory, *options, workers=workers, tree=tree) as changing,
        ending(changing.bus),
    ):
        yield changing


@contextmanager
def ending_bus(
    directory: Path, *options: str, workers: int = 2, tree: Path = PROJECT
) -> Iterator[ChangingBus]:
    """The same, for a block in which the bus may end by itself."""
    address, script = str(directory / "bus.socket"), directory / "new_program.py"
    program = ("-P", "-c", _PROGRAM.format(script=str(script)))
    changing = ChangingBus(directory)
    changing.set_workers(workers)
    changing.run_tree(tree)
    config = ("--config", str(directory / "sbus.toml"))
    arguments = ("-f", "-a", address, *config, "--placement", "spread", *options)
    command = None if tree == PROJECT else (sys.executable, *program, *RUN_AS_SELF)
    with bus_of(
        directory, *arguments, address=address, command=command, upgraded_to=program
    ) as bus:
        changing.bus = bus
        yield changing


@contextmanager
def ending(bus: Bus) -> Iterator[None]:
    """End the process that serves the bus behind the block, if it is not the one that was started,
    and kill what is left of it if the block fails."""
    try:
        yield
        pid = serving_pid(bus)
        check_sockets(process_tree(pid))
        if pid != bus.process.pid:
            os.kill(pid, signal.SIGTERM)
            assert wait_until_gone(pid, STOP_SECONDS_MAX)
            assert bus.process.wait(STOP_SECONDS_MAX) in (0, -signal.SIGKILL)
            assert not os.path.lexists(bus.address)
            assert not os.path.lexists(f"{bus.address}.admin")
    finally:
        for pid in set(_processes_of(bus)) - set(bus.pids()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert "Traceback" not in bus.stderr_text()


def _processes_of(bus: Bus) -> list[int]:
    """All processes that have the address of the bus in their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if os.fsencode(bus.address) in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
