"""Where a bus is looked for, and where one listens, if no address is given."""

import os
from pathlib import Path

import pytest

from sbus.unix.default_address import default_address, own_address


@pytest.mark.parametrize("uid", [0, 1000])
def test_a_user_has_its_own_bus_in_its_runtime_directory(
    uid: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SBUS_ADDRESS", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = f"{tmp_path}/sbus.socket" if uid else "/run/sbus.socket"
    assert own_address() == own
    assert default_address() == "/run/sbus.socket"
    (tmp_path / "sbus.socket").touch()
    assert default_address() == own


@pytest.mark.parametrize("directory", [None, "", "relative"])
def test_without_a_runtime_directory_there_is_the_bus_of_the_system(
    directory: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SBUS_ADDRESS", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if directory is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
    assert own_address() == default_address() == "/run/sbus.socket"
