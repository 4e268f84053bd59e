"""The output of `sbusctl sub`: messages as lines of text, as JSON, or as they are.

All messages that have arrived are printed in one write: a line is never late, and a flood costs few
system calls. Keys and payloads are other people's bytes; `to_text` makes them safe to show.
"""

import base64
import json
from collections.abc import Callable

from sbus.cli.terminal.error_output import report_error
from sbus.cli.terminal.standard_output import write
from sbus.client.blocking import Connection
from sbus.client.inbox import Lost, Reconnected
from sbus.protocol.packets import Message
from sbus.protocol.text import to_text

MESSAGES_AT_ONCE_MAX = 1024
"""Messages printed in one write."""


def print_messages(bus: Connection[Message | Lost], form: str, count: int | None) -> None:
    """Print `count` messages, or for ever, in the form "text", "raw" or "json". Losses do not
    count. JSON has them among the messages; otherwise they go to standard error."""
    left = count
    while left is None or left > 0:
        limit = MESSAGES_AT_ONCE_MAX if left is None else min(left, MESSAGES_AT_ONCE_MAX)
        items = bus.receive_many(limit)
        if form == "json":
            write(b"".join(map(json_line, items)))
        else:
            _print_lines(items, text_line if form == "text" else raw_line)
        if left is not None:
            left -= sum(isinstance(item, Message) for item in items)


def _print_lines(items: list[Message | Lost], line: Callable[[Message], bytes]) -> None:
    lines = []
    for item in items:
        if isinstance(item, Message):
            lines.append(line(item))
            continue
        write(b"".join(lines))
        lines.clear()
        report_error(str(item.error()), command="sbusctl")
    write(b"".join(lines))


def text_line(message: Message) -> bytes:
    """`KEY PAYLOAD`; a space within the key is `\\x20`, so the first space ends it."""
    key = to_text(message.key).replace(" ", "\\x20")
    return f"{key} {to_text(message.payload)}\n".encode()


def raw_line(message: Message) -> bytes:
    """The payload as it came, and a newline."""
    return message.payload + b"\n"


def json_line(item: Message | Lost) -> bytes:
    """An object with `key` and `payload`, or, where they are not UTF-8, `key_base64` and
    `payload_base64`; for a loss, with `lost`, a number or null, and with `reconnected`, a reason,
    where the connection was lost. It is in ASCII, which is safe on a terminal as well."""
    if isinstance(item, Lost):
        gap: dict[str, int | str | None] = {"lost": item.count}
        if isinstance(item, Reconnected):
            gap["reconnected"] = item.reason
        return json.dumps(gap).encode() + b"\n"
    fields = (_json_field("key", item.key), _json_field("payload", item.payload))
    return json.dumps(dict(fields)).encode() + b"\n"


def _json_field(name: str, value: bytes) -> tuple[str, str]:
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", base64.b64encode(value).decode()
