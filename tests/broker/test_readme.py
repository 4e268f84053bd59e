"""The programs of the README, and the C program that it names, work when they are pasted."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import sbus.blocking
from tests.support.bus import PROJECT, Bus, sbusd_environment
from tests.support.needs import needs_tool
from tests.support.terminals import TIMEOUT_S, two_terminals
from tests.support.threads import wait_until

README = PROJECT / "README.md"
PROTOCOL = PROJECT / "docs" / "protocol.md"
BENCHMARKS = PROJECT / "docs" / "benchmarks.md"


def blocks(document: Path, language: str, address: str) -> list[str]:
    """The blocks of a language, for a bus at this address."""
    fence = rf"^```{language}\n(.*?)^```$"
    found = re.findall(fence, document.read_text(), re.MULTILINE | re.DOTALL)
    return [block.replace("/tmp/bus", address) for block in found]


def rows(document: Path) -> list[list[str]]:
    """The cells of all rows of tables."""
    lines = document.read_text().splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]


def test_the_commands(tmp_path: Path) -> None:
    first, second = blocks(README, "sh", f"{tmp_path}/bus")
    install, rest = first.split("\n", 1)
    assert "pip install" in install
    start, subscribe = rest.strip().rsplit("\n", 1)
    (end,) = re.findall(r"`(kill .*?)`", README.read_text())
    with two_terminals(tmp_path) as terminals:
        assert terminals.first(start) == ""
        terminals.in_second(subscribe)
        assert terminals.first(second) == ""
        assert terminals.close() == "lamps/3/state on\n"
        terminals.first(end)


def test_the_program_that_subscribes_and_publishes(bus: Bus) -> None:
    program, _ = blocks(README, "python", bus.address)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**sbusd_environment(), "SBUS_ADDRESS": bus.address},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'on'\n", "")


def test_the_program_that_answers_and_the_two_ways_to_ask_it(bus: Bus) -> None:
    _, program = blocks(README, "python", bus.address)
    ask, at_the_shell = re.findall(
        r"`(bus\.request\(.*?\)|sbusctl request .*?)`", README.read_text()
    )
    environment = {**sbusd_environment(), "SBUS_ADDRESS": bus.address}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as running:
        try:
            with sbus.blocking.connect(bus.address) as client:
                # A receipt counts the clients that have a message; this one is no request.
                wait_until(
                    lambda: client.publish_with_receipt("sums").has_listeners, "nobody answers"
                )
                assert eval(ask, {"bus": client}) == b"6"
            sbusctl = [sys.executable, "-m", "sbus.cli.sbusctl", *shlex.split(at_the_shell)[1:]]
            printed = subprocess.run(
                sbusctl, env=environment, capture_output=True, timeout=TIMEOUT_S
            )
            assert (printed.returncode, printed.stdout) == (0, b"6")
        finally:
            running.kill()


def test_the_costs_are_those_of_the_benchmarks() -> None:
    """Each row of the README's table is a column of the comparison."""
    table = [row for row in rows(BENCHMARKS) if len(row) == 8]
    heads = next(row for row in table if row[0] == "µs")
    measured = {row[0]: dict(zip(heads, row, strict=True)) for row in table}
    columns = {
        "round trip, median": "p50",
        "a lone message": "lock step",
        "one of a flood, to one subscriber": "saturated",
        "one of a flood, to 50 subscribers": "to 50",
    }
    shown = {row[0]: row[1:] for row in rows(README) if row[0] in columns}
    names = ("sbus-1", "dbus-broker", "redis", "nats", "mosquitto", "zeromq")
    expected = {
        title: [measured[name][column] for name in names] for title, column in columns.items()
    }
    assert shown == expected


@needs_tool("gcc", "gcc")
def test_the_c_program_prints_into_a_pipe(tmp_path: Path, bus: Bus) -> None:
    (program,) = blocks(PROTOCOL, "c", bus.address)
    (tmp_path / "program.c").write_text(program)
    build = ["gcc", "-Wall", "-Wextra", "-Werror", "-o", "program", "program.c"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=TIMEOUT_S)
    with subprocess.Popen([tmp_path / "program"], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline() == "lamps/3/state: on\n"
        finally:
            running.kill()
