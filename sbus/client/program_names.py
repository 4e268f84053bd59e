"""Results and events of a bus, with the names of scripts in the place of their interpreters.

The bus itself does not look for script names (see `script_names`).
"""

from typing import Any, TypeVar

import msgspec

from sbus.protocol.text import to_text
from sbus.unix.script_names import ScriptNames

R = TypeVar("R", bound=msgspec.Struct)

_FIELDS = ("client", "pid", "program")


class ProgramNames:
    """Those of the clients of one bus."""

    def __init__(self) -> None:
        self._scripts = ScriptNames()

    def in_result(self, result: R) -> R:
        """The result of a request, each client in it with its name for people."""
        lists = {
            name: [self.in_client(entry) for entry in entries]
            for name, entries in msgspec.structs.asdict(result).items()
            if isinstance(entries, list) and entries and isinstance(entries[0], msgspec.Struct)
        }
        return self.in_client(msgspec.structs.replace(result, **lists) if lists else result)

    def in_client(self, described: R) -> R:
        """The same for what describes one client; anything else is returned as it is."""
        name = self._name(**{field: getattr(described, field, None) for field in _FIELDS})
        return msgspec.structs.replace(described, program=name) if name else described

    def set_in_event(self, event: dict[str, Any]) -> None:
        """The same in an event."""
        name = self._name(**{field: event.get(field) for field in _FIELDS})
        if name:
            process = f"pid {event['pid']} ({{}})"
            old, new = process.format(event["program"]), process.format(name)
            event |= {"program": name, "text": event["text"].replace(old, new)}

    def _name(self, client: int | None, pid: int | None, program: str | None) -> str | None:
        """None if there is no better name than `program`."""
        if pid is None or not program:
            return None
        name = self._scripts.name(client, pid, program.encode())
        return to_text(name) if name else None
