"""Names of this host's own users.

Only the local file is read, because a directory service may take any time to answer.
"""

from pathlib import Path

_FILE = Path("/etc/passwd")
_FILE_BYTES_MAX = 1024 * 1024


def local_user_names(path: Path = _FILE) -> dict[int, str]:
    """The users of the file, see passwd(5), by their ids; empty if it cannot be read."""
    names: dict[int, str] = {}
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_BYTES_MAX).decode(errors="replace")
    except OSError:
        return names
    for line in text.split("\n"):
        name, *fields = line.split(":")
        if len(fields) > 1 and fields[1].isascii() and fields[1].isdecimal():
            names.setdefault(int(fields[1][:10]), name)
    return names
