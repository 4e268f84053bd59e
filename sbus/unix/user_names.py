"""Names of this host's own users and groups.

Only the local files are read, because a directory service may take any time to answer.
"""

from pathlib import Path

_FILE = Path("/etc/passwd")
_GROUP_FILE = Path("/etc/group")
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


def local_group_names(path: Path = _GROUP_FILE) -> dict[int, str]:
    """The groups of the file, see group(5), likewise: an id is at the same place of its lines."""
    return local_user_names(path)
