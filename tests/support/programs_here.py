"""Programs in the process of the test, for command lines that do nothing lasting."""

import sys
from collections.abc import Callable

import pytest

from sbus.cli.sbusd import command


def program_here(
    main: Callable[[], None],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capture: pytest.CaptureFixture[str],
) -> tuple[int, str, str]:
    """Exit status, and what it has written to both outputs."""
    monkeypatch.setattr(sys, "argv", [main.__module__.split(".")[-2], *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), *capture.readouterr()


def sbusd_here(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """The same for `sbusd`."""
    return program_here(command.main, words, monkeypatch, capsys)
