"""A real log of this host, as messages: `log/NAME/...`, one for each line.

It is the newest log file in /var/log that this user may read, else the package manager's list.
Where the format of a line is known, the key says what kind of line it is.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sbus.demo.samples import Message, segment

LOG_DIRECTORY = Path("/var/log")
PACKAGE_LISTS = (Path("/var/lib/dpkg/status"), Path("/lib/apk/db/installed"))
TAIL_BYTES = 256 * 1024
LINES_MAX = 500
"""The last lines of a log that are published, if they are near enough to its end."""
LINE_BYTES_MAX = 4096
LINES_PER_ROUND = 10

_DPKG = re.compile(rb"[-\d]+ [:\d]+ (?:(status) )?([a-z-]+) ")
_SYSLOG = re.compile(rb"(?:[A-Z][a-z]{2} [ \d]\d [:\d]{8}|\d{4}-\S+) \S+ ([^\s:\[]+)(?:\[\d+\])?: ")


class Log(NamedTuple):
    """Lines to publish, oldest first, and where they came from."""

    origin: str
    name: bytes
    lines: list[bytes]


def find_log() -> Log | None:
    """The best log this user may read; None when there is none at all."""
    for path in [*newest_first(LOG_DIRECTORY), *PACKAGE_LISTS]:
        try:
            lines = tail(path)
        except (FileNotFoundError, PermissionError):
            continue
        if lines:
            return Log(str(path), segment(os.fsencode(path.stem)), lines)
    return None


def newest_first(directory: Path) -> list[Path]:
    """The log files of `directory` itself, the one written to last at the front."""
    candidates = [directory / "syslog", directory / "messages", *directory.glob("*.log")]
    return sorted(
        (path for path in candidates if path.is_file()),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )


def tail(path: Path) -> list[bytes]:
    """The last whole lines of a file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - TAIL_BYTES)
        file.seek(start)
        lines = file.read(TAIL_BYTES).splitlines()
    if start:
        lines = lines[1:]
    return [line[:LINE_BYTES_MAX] for line in lines if line.strip()][-LINES_MAX:]


def messages(log: Log) -> Iterator[list[Message]]:
    """A few lines a round, from the oldest on, again and again."""
    found = [(line_key(log.name, line), line) for line in log.lines]
    while True:
        for start in range(0, len(found), LINES_PER_ROUND):
            yield found[start : start + LINES_PER_ROUND]


def line_key(name: bytes, line: bytes) -> bytes:
    """`log/dpkg/status/installed`, `log/syslog/PROGRAM`, or `log/NAME/line`."""
    if name == b"dpkg" and (match := _DPKG.match(line)):
        kinds = [kind for kind in match.groups() if kind]
    elif match := _SYSLOG.match(line):
        kinds = [match.group(1)]
    else:
        kinds = [b"line"]
    return b"/".join([b"log", name, *map(segment, kinds)])
