"""The id of this machine; its name is no id, because many machines are called localhost."""

import re
from contextlib import suppress
from pathlib import Path

_PATHS = ("/etc/machine-id", "/var/lib/dbus/machine-id")


def machine_id() -> str:
    """The id of this installation of the system, see machine-id(5); empty if it has none."""
    for path in _PATHS:
        with suppress(OSError):
            text = Path(path).read_text("ascii", "replace").strip()
            if re.fullmatch("[0-9a-f]{32}", text):
                return text
    return ""
