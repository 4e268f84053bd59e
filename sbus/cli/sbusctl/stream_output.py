"""The output of `sbusctl monitor` and `sbusctl events`: a line for each item of a stream.

Lines for people have the time of day and fit 80 columns, unless a key or a text is long. All items
that have arrived are printed in one write.
"""

import json
import time
from typing import Any

import msgspec

from sbus.cli.sbusctl.admin_requests import warn_of_unanswered
from sbus.cli.terminal.error_output import report_error
from sbus.cli.terminal.standard_output import write
from sbus.cli.terminal.tables import shorten
from sbus.cli.terminal.user_names import user_name
from sbus.client.message_joiner import MissedItems, MonitoredMessage
from sbus.client.streams import Stream
from sbus.protocol.text import to_text

_CLIENT_WIDTH = 20
_USER_WIDTH = 8


class MessageView:
    """Messages, with their payloads if `payload`."""

    noun = "messages"

    def __init__(self, *, payload: bool) -> None:
        self._payload = payload
        key = "KEY PAYLOAD" if payload else "KEY"
        self.heading = _message_line("TIME", "USER", "PROGRAM[PID]", "BYTES", "TO", key)

    def line(self, item: MonitoredMessage) -> str:
        key = item.key.replace(" ", "\\x20") if self._payload else item.key
        if item.payload is not None:
            key = f"{key} {to_text(item.payload)}"
        pid = f"[{item.pid}]"
        return _message_line(
            _time_of_day(item.time),
            shorten(user_name(item.uid), _USER_WIDTH),
            f"{shorten(item.program or 'ended', _CLIENT_WIDTH - len(pid))}{pid}",
            "-" if item.size is None else str(item.size),
            "?" if item.recipients is None else str(item.recipients),
            key,
        )

    def as_json(self, item: MonitoredMessage) -> str:
        fields = msgspec.to_builtins(item)
        if not self._payload:
            del fields["payload"]
        return json.dumps(fields)


def _message_line(at: str, user: str, client: str, size: str, recipients: str, key: str) -> str:
    return (
        f"{at:<12} {user:<{_USER_WIDTH}} {client:<{_CLIENT_WIDTH}} {size:>6} {recipients:>3} {key}"
    )


class EventView:
    """Events."""

    noun = "events"
    heading = ""

    def line(self, item: dict[str, Any]) -> str:
        return f"{_time_of_day(item['time'])} {item['text']}"

    def as_json(self, item: dict[str, Any]) -> str:
        return json.dumps(item)


def _time_of_day(seconds: float) -> str:
    """Local time, to the millisecond."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%H:%M:%S', time.localtime(whole))}.{milliseconds:03}"


def print_stream(
    stream: Stream[Any], view: MessageView | EventView, *, as_json: bool, count: int | None
) -> None:
    """Print `count` items, or for ever. Missed items do not count. Raises Disconnected when the bus
    has ended."""
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
                report_error(f"{item.count} {view.noun} were missed here", command="sbusctl")
        _print(lines)


def _print(lines: list[str]) -> None:
    if lines:
        write("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
        lines.clear()
