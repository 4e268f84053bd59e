"""`sbusd` in the process of the test, for command lines that start no bus."""

import sys

import pytest

from sbus.cli.sbusd import command


def sbusd_here(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Exit status, and what it has written to both outputs."""
    monkeypatch.setattr(sys, "argv", ["sbusd", *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return int(ended.value.code or 0), *capsys.readouterr()
