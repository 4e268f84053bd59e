"""What an importer has written down is sound at each instruction."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sbus.bridge.configuration import parse_configuration
from sbus.bridge.durable_import import DurableImport, Sent
from sbus.bridge.status import DurableStatus
from sbus.unix.kept_sockets import KeptSockets
from sbus.unix.notify import Notifier
from sbus.unix.state_file import StateFile

CONFIG = """
[bridge]
state = "{state}"
[channels.all]
patterns = ["all/"]
[channels.all.durable]
[links.office]
servers = ["nats://x"]
import = ["all"]
"""


class Watched:
    """A memory that calls this after each store."""

    def __init__(self, memory: Any, note: Any) -> None:
        self._memory, self._note = memory, note

    def __getitem__(self, at: Any) -> Any:
        return self._memory[at]

    def __setitem__(self, at: Any, data: Any) -> None:
        self._memory[at] = data
        self._note()


def test_the_flag_always_has_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = parse_configuration(CONFIG.format(state=tmp_path).encode(), "bus")
    sockets = KeptSockets(Notifier(), {})
    path = tmp_path / "all.sent"
    StateFile(path, Sent()).write(Sent(7, 1, [("o", "aa", 1)]), flag=True)
    importer = DurableImport(
        DurableStatus("all"), "sbus", plan, lambda *_: [], lambda *_: None, sockets
    )
    importer._bus = SimpleNamespace(cookie=7)  # type: ignore[assignment]
    seen: list[tuple[bool, int]] = []

    def note() -> None:
        found = StateFile(path, Sent())
        seen.append((found.flag, len(found.state.marks)))

    monkeypatch.setattr(importer._sent, "_map", Watched(importer._sent._map, note))
    importer._confirm()
    assert seen[-1] == (False, 0)
    assert (True, 0) not in seen
