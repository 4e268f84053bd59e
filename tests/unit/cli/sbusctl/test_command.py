"""`sbusctl` as a command: help, errors, and imports at start."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sbus.cli.sbusctl.command import VERBS, main
from tests.support.bus import sbusd_environment
from tests.support.programs_here import program_here

SBUSCTL = (sys.executable, "-m", "sbus.cli.sbusctl")
TIMEOUT_S = 60.0

RunHere = Callable[..., tuple[int, str, str]]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SBUSCTL, *words],
        env={**sbusd_environment(), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunHere:
    """Runs a command in this process; its exit status, and what it has written to both outputs."""

    return lambda *words: program_here(main, list(words), monkeypatch, capfd)


def test_version() -> None:
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("sbusctl 0.")


def test_the_help_of_every_verb_has_an_example(run_here: RunHere) -> None:
    for verb in VERBS:
        status, output, _ = run_here(verb, "--help")
        assert status == 0
        assert f"sbusctl {verb}" in output.partition("Example")[2]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("dance",),
        ("pub",),
        ("sub",),
        ("sub", "--count", "0", "a"),
        ("ping", "--interval", "-1"),
        ("pub", "key", "payload", "--file", "f"),
        ("--dialect", "comma", "whoami"),
    ],
    ids=" ".join,
)
def test_a_usage_error_is_one_line_and_status_2(words: tuple[str, ...], run_here: RunHere) -> None:
    status, output, errors = run_here(*words)
    assert (status, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert errors.startswith("sbusctl: ")
    assert "--help" in errors


@pytest.mark.parametrize(
    ("word", "verb"),
    [("subscribe", "sub"), ("publish", "pub"), ("status", "stats"), ("client", "clients")],
)
def test_an_unknown_verb_gets_a_suggestion(word: str, verb: str, run_here: RunHere) -> None:
    assert f"there is no verb '{word}'; did you mean {verb}? (" in run_here(word)[2]


@pytest.mark.parametrize("words", [("pub", "k", "p"), ("sub", "k")])
def test_a_missing_bus_is_one_line_and_status_1(words: tuple[str, ...], tmp_path: Path) -> None:
    address = str(tmp_path / "none")
    for result in (run("-a", address, *words), run(*words, SBUS_ADDRESS=address)):
        assert result.returncode == 1
        assert result.stdout == ""
        assert result.stderr == (
            f"sbusctl: cannot connect to {address}: No such file or directory: "
            "is sbusd running, and is this its address?\n"
        )


def test_an_address_in_an_error_is_escaped(tmp_path: Path) -> None:
    result = run("-a", str(tmp_path / "\x1b[2J"), "whoami")
    assert result.returncode == 1
    assert "\x1b" not in result.stderr


def test_raw_output_to_a_terminal_is_refused() -> None:
    """Before it connects to the bus."""
    controller, terminal = os.openpty()
    try:
        result = subprocess.run(
            [*SBUSCTL, "sub", "--raw", "k"],
            env=sbusd_environment(),
            stdout=terminal,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        os.close(terminal)
        os.close(controller)
    assert result.returncode == 2
    assert "terminal" in result.stderr


@pytest.mark.parametrize("words", [("--help",), ("whoami",), ("pub", "k", "p"), ("sub", "k")])
def test_nothing_heavy_is_imported(words: tuple[str, ...], tmp_path: Path) -> None:
    """trio or rich would double the time to start."""
    command = [sys.executable, "-X", "importtime", *SBUSCTL[1:], "-a", str(tmp_path / "none")]
    result = subprocess.run(
        [*command, *words],
        env=sbusd_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "click" in loaded
    assert not {"trio", "anyio", "asyncio", "rich"} & loaded
