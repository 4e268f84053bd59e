"""The log of the bus: events as entries of the journal, or as lines on standard error.

The journal gets all that is logged, with priority, id and fields. Standard error, which may be a
terminal or a file that grows, gets the text of notices and worse. Neither is waited for: an event
that has no room is lost, and the next one that this process logs says how many were.
"""

import os
import uuid
from collections.abc import Callable
from functools import partial

from sbus.errors import ConfigurationError
from sbus.protocol.event import DEBUG, NOTICE, Event
from sbus.unix.journal import SOCKET_PATH, Journal, is_journal
from sbus.unix.standard_streams import ERRORS, write_at_once

WriteEvent = Callable[[Event, str], None]
"""Writes an event with this text."""

_NAMESPACE = uuid.UUID("7b0c5a1e-9a64-4f3e-8b0a-0d4f1f6c2a55")
_LINE_BYTES_MAX = 4_000
"""Less than PIPE_BUF, of which a pipe takes all or nothing."""


class _Log:
    """Writes events of at least this priority, with a function that returns whether the log had
    room. It is inherited by forked processes, each of which counts the events that it lost."""

    def __init__(self, write: Callable[[Event, str], bool], priority_least: int) -> None:
        self._write = write
        self._priority_least = priority_least
        self._lost: dict[int, int] = {}

    def __call__(self, event: Event, text: str) -> None:
        if event.priority > self._priority_least:
            return
        pid = os.getpid()
        lost = self._lost.get(pid, 0)
        more = f" (lost before it, because the log was full: {lost})" if lost else ""
        self._lost[pid] = 0 if self._write(event, f"{text}{more}") else lost + 1


def open_log(kind: str) -> WriteEvent:
    """The log of this kind: `journal`, `stderr`, or `auto`, which is the journal if standard error
    leads there. Raises ConfigurationError when there is no journal."""
    if kind == "journal" and not os.path.exists(SOCKET_PATH):
        raise ConfigurationError(f"log=journal: there is none, {SOCKET_PATH} does not exist")
    if kind == "journal" or (kind == "auto" and is_journal(2, os.environ.get("JOURNAL_STREAM"))):
        return _Log(partial(write_to_journal, Journal()), DEBUG)
    return _Log(partial(write_line, ERRORS), NOTICE)


def message_id(event: Event) -> str:
    """The journal's name for this kind of event: 128 bits that never change."""
    return uuid.uuid5(_NAMESPACE, event.id()).hex


def write_to_journal(journal: Journal, event: Event, text: str) -> bool:
    """Write an entry with the event's fields, each as SBUS_ and its name; whether there was room
    for it."""
    fields: dict[str, str | int] = {
        "MESSAGE": text,
        "PRIORITY": event.priority,
        "MESSAGE_ID": message_id(event),
        "SYSLOG_IDENTIFIER": "sbusd",
        "SBUS_EVENT": event.id(),
    }
    for name, value in event.fields().items():
        fields[f"SBUS_{name.upper()}"] = value if isinstance(value, int) else str(value)
    return journal.write(fields)


def write_line(fd: int, _event: Event, text: str) -> bool:
    """Write one line; whether there is a reader with room for it."""
    line = f"sbusd: {text}".encode(errors="backslashreplace")[:_LINE_BYTES_MAX] + b"\n"
    try:
        return write_at_once(fd, line)
    except OSError:
        return False  # it is full, or nobody reads it
