"""The log of the bus: events as entries of the journal, or as lines on standard error.

The journal gets all that is logged, with priority, id and fields. Standard error, which may be a
terminal or a file that grows, gets the text of notices and worse. Neither is waited for: what has
no room is lost.
"""

import os
import select
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from sbus.errors import ConfigurationError
from sbus.protocol.event import NOTICE, Event
from sbus.unix.journal import SOCKET_PATH, Journal, is_journal

WriteEvent = Callable[[Event, str], None]
"""Writes an event with this text."""

_NAMESPACE = uuid.UUID("7b0c5a1e-9a64-4f3e-8b0a-0d4f1f6c2a55")
_LINE_BYTES_MAX = 4_000
"""What a pipe that can be written to takes at once."""


def open_log(kind: str) -> WriteEvent:
    """The log of this kind: `journal`, `stderr`, or `auto`, which is the journal if standard error
    leads there. Raises ConfigurationError when there is no journal."""
    if kind == "journal" and not os.path.exists(SOCKET_PATH):
        raise ConfigurationError(f"log=journal: there is none, {SOCKET_PATH} does not exist")
    if kind == "journal" or (kind == "auto" and is_journal(2, os.environ.get("JOURNAL_STREAM"))):
        return partial(write_to_journal, Journal())
    return write_to_stderr


def message_id(event: Event) -> str:
    """The journal's name for this kind of event: 128 bits that never change."""
    return uuid.uuid5(_NAMESPACE, event.id()).hex


def write_to_journal(journal: Journal, event: Event, text: str) -> None:
    """Write an entry with the event's fields, each as SBUS_ and its name."""
    fields: dict[str, str | int] = {
        "MESSAGE": text,
        "PRIORITY": event.priority,
        "MESSAGE_ID": message_id(event),
        "SYSLOG_IDENTIFIER": "sbusd",
        "SBUS_EVENT": event.id(),
    }
    for name, value in event.fields().items():
        fields[f"SBUS_{name.upper()}"] = value if isinstance(value, int) else str(value)
    journal.write(fields)


def write_to_stderr(event: Event, text: str) -> None:
    """Write one line, if there is a reader with room for it."""
    if event.priority > NOTICE:
        return
    line = f"sbusd: {text}".encode(errors="backslashreplace")[:_LINE_BYTES_MAX] + b"\n"
    with suppress(OSError, ValueError):
        fd = sys.stderr.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        if any(ready & select.POLLOUT for _, ready in poll.poll(0)):
            os.write(fd, line)
