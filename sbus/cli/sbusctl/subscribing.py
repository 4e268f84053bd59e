"""`sbusctl sub`: from the bus to standard output, as fast as that takes it.

What is there is printed in one write, so a line is never late and a flood costs few system calls.
Knows neither options nor exit statuses.
"""

from collections.abc import Callable, Iterable

from sbus.cli.sbusctl.rendering import json_line, raw_line, text_line
from sbus.cli.terminal.error_output import report_error
from sbus.cli.terminal.exit_status import write
from sbus.client.blocking import Connection
from sbus.client.inbox import Lost
from sbus.errors import MessagesLost
from sbus.protocol.packets import Message

MESSAGES_AT_ONCE_MAX = 1024
"""Messages printed in one write."""


def choose(
    bus: Connection[Message | Lost], *, soft: str | None, hard: str | None, order: str | None
) -> None:
    """Choose what becomes of messages while this client reads too slowly; None: as the bus does.

    Raises PacketRefused when the bus cannot hold publishers back for one more client.
    """
    for key, choice in (("blocking/soft", soft), ("blocking/hard", hard), ("order", order)):
        if choice is not None:
            bus.control(f"{key}/{choice}")
            bus.sync()


def subscribe_all(bus: Connection[Message | Lost], patterns: Iterable[bytes]) -> None:
    """Subscribe to all patterns; raises PacketRefused when the bus refused one."""
    for pattern in patterns:
        bus.subscribe(pattern)
    bus.sync()


def print_messages(bus: Connection[Message | Lost], form: str, count: int | None) -> None:
    """Print messages in a form, "text", "raw" or "json": `count` of them, or for ever.

    Losses are not counted. In JSON they are among the messages, else on standard error.
    """
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
        report_error(str(MessagesLost(item.count)), command="sbusctl")
    write(b"".join(lines))
