"""Subordinate user ids: which user can act under each of them.

An administrator gives users ranges of ids (subuid(5)), with which they run containers without
privileges. The owner of a range can become every id in it. A range of root's is for containers that
are less trusted than root, so all of its ids count as the first id of the range, not as root.
"""

from bisect import bisect_right
from pathlib import Path

from sbus.errors import ConfigurationError
from sbus.unix.users import user_id

_FILE = Path("/etc/subuid")
_FILE_BYTES_MAX = 1024 * 1024

Range = tuple[int, int, int]
"""The first id, the one behind the last, and the user that all of them count as."""


class SubordinateIds:
    """The ranges of one file, which is read again when it has changed."""

    def __init__(self, path: Path = _FILE) -> None:
        self._path = path
        self._version: tuple[int, ...] | None = None
        self._ranges: list[Range] = []

    def owner(self, uid: int) -> int:
        """The user that a subordinate id counts as; for any other id, the id itself."""
        self._read_if_changed()
        at = bisect_right(self._ranges, uid, key=lambda one: one[0])
        if uid and at:
            _, end, owner = self._ranges[at - 1]
            if uid < end:
                return owner
        return uid

    def _read_if_changed(self) -> None:
        try:
            found = self._path.stat()
            version = (found.st_ino, found.st_mtime_ns, found.st_size)
            if version == self._version:
                return
            with self._path.open("rb") as file:
                text = file.read(_FILE_BYTES_MAX).decode(errors="replace")
        except OSError:
            # Many hosts have no such file.
            self._version, self._ranges = None, []
            return
        self._version = version
        self._ranges = _disjoint(text.splitlines())


def _disjoint(lines: list[str]) -> list[Range]:
    """The ranges in the order of their ids. Of an id in several ranges, the one that begins first
    decides. Lines with mistakes mean nothing, as to the programs that give out the ids."""
    ranges: list[Range] = []
    for begin, end, owner in sorted(filter(None, map(_parse, lines))):
        begin = max(begin, ranges[-1][1] if ranges else 0)
        if begin < end:
            ranges.append((begin, end, owner))
    return ranges


def _parse(line: str) -> Range | None:
    try:
        name, first, count = line.split(":")
        begin, owner = int(first), user_id(name)
        return begin, begin + int(count), owner or begin
    except (ValueError, ConfigurationError):
        return None
