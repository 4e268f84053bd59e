"""`sbusctl monitor` and `sbusctl events`: from a stream to standard output, a line for each.

Lines for people have the time of day and fit 80 columns, unless a key or a text is long. What is
there is printed in one write. Knows neither options nor how the bus is watched.
"""

import json
import time
from typing import Any, Protocol, TypeVar

import msgspec

from sbus.cli.sbusctl.answers import warn_of_unanswered
from sbus.cli.terminal.error_output import report_error
from sbus.cli.terminal.exit_status import write
from sbus.cli.terminal.tables import shorten
from sbus.client.message_joiner import MissedItems, MonitoredMessage
from sbus.client.streams import Stream
from sbus.protocol.text import to_text

_WHO_WIDTH = 20

T_contra = TypeVar("T_contra", contravariant=True)
T = TypeVar("T")


class View(Protocol[T_contra]):
    """How one kind of items is shown."""

    heading: str
    """In front of the lines for people; empty for none."""
    name: str
    """What several of them are called."""

    def line(self, item: T_contra) -> str: ...

    def as_json(self, item: T_contra) -> str: ...


class MessageView:
    """Messages; with what they hold, if `payload`."""

    name = "messages"

    def __init__(self, *, payload: bool) -> None:
        self._payload = payload
        key = "KEY PAYLOAD" if payload else "KEY"
        self.heading = _message_line("TIME", "UID", "PROGRAM[PID]", "BYTES", "TO", key)

    def line(self, item: MonitoredMessage) -> str:
        key = item.key.replace(" ", "\\x20") if self._payload else item.key
        if item.payload is not None:
            key = f"{key} {to_text(item.payload)}"
        return _message_line(
            _time_of_day(item.time),
            str(item.uid),
            _who(item),
            "-" if item.size is None else str(item.size),
            "?" if item.recipients is None else str(item.recipients),
            key,
        )

    def as_json(self, item: MonitoredMessage) -> str:
        fields = msgspec.to_builtins(item)
        if not self._payload:
            del fields["payload"]
        return json.dumps(fields)


def _who(item: MonitoredMessage) -> str:
    pid = f"[{item.pid}]"
    return f"{shorten(item.program or 'ended', _WHO_WIDTH - len(pid))}{pid}"


def _message_line(at: str, uid: str, who: str, size: str, recipients: str, key: str) -> str:
    return f"{at:<12} {uid:>5} {who:<{_WHO_WIDTH}} {size:>6} {recipients:>3} {key}"


class EventView:
    """Events."""

    name = "events"
    heading = ""

    def line(self, item: dict[str, Any]) -> str:
        return f"{_time_of_day(item['time'])} {item['text']}"

    def as_json(self, item: dict[str, Any]) -> str:
        return json.dumps(item)


def _time_of_day(seconds: float) -> str:
    """Hours to milliseconds, local time."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%H:%M:%S', time.localtime(whole))}.{milliseconds:03}"


def print_stream(
    stream: Stream[T | MissedItems], view: View[T], *, as_json: bool, count: int | None
) -> None:
    """Print what comes: `count` items, or for ever. What was missed is not counted.

    Raises Disconnected when the bus has ended.
    """
    warn_of_unanswered(stream.unanswered)
    if view.heading and not as_json:
        write(f"{view.heading}\n".encode())
    left = count
    while left is None or left > 0:
        lines: list[str] = []
        for item in stream.receive_many():
            if not isinstance(item, MissedItems):
                if left is not None:
                    if not left:
                        break
                    left -= 1
                lines.append(view.as_json(item) if as_json else view.line(item))
            elif as_json:
                lines.append(json.dumps({"missed": item.count}))
            else:
                _print(lines)
                report_error(f"{item.count} {view.name} were missed here", command="sbusctl")
        _print(lines)


def _print(lines: list[str]) -> None:
    if lines:
        write("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
        lines.clear()
