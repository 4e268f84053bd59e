"""The output of `sbusctl sub`: messages as lines of text, as JSON, or as they are.

All messages that have arrived are printed in one write: a line is never late, and a flood costs few
system calls. Keys and payloads are other people's bytes; `to_text` makes them safe to show.
"""

import base64
import json
import math
import string
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, Protocol

import msgspec

from sbus.cli.terminal.error_output import report_error
from sbus.cli.terminal.standard_output import write
from sbus.client.message_queue import Lost, NotKept, Reconnected
from sbus.errors import BusError, ConfigurationError
from sbus.protocol.packets import Message, Sender
from sbus.protocol.text import to_text

MESSAGES_AT_ONCE_MAX = 1024
"""Messages printed in one write."""
LOSSES_SECONDS = 10.0
"""Between two reports of losses, except for the last one."""
SENDER_FIELDS = Sender.__struct_fields__
FIELDS = ("time", "key", "payload", *SENDER_FIELDS)
"""What a format can name; the last ones need `--sender`."""

Line = Callable[[Message, float], bytes]
"""The line of a message that was received at a time of `time.time`."""


class Source(Protocol):
    """Where messages come from: a connection, or one of its subscriptions."""

    def receive_many(
        self, limit: int, *, timeout_seconds: float | None
    ) -> list[Message | Lost]: ...


class Style(NamedTuple):
    """How messages are printed."""

    line: Line
    has_losses: bool = False
    """Losses are among the messages, as JSON; otherwise they go to standard error."""
    lines: Callable[[list[Message]], bytes] | None = None
    """The lines of several messages, in less time than one by one."""


def style_of(
    form: str | None,
    template: str | None,
    *,
    timestamps: bool,
    sender: bool = False,
    is_only_one: bool = False,
) -> Style:
    """From the options of `sbusctl sub`; `is_only_one` message is printed. Raises
    ConfigurationError."""
    if sender and form != "json" and template is None:
        raise ConfigurationError("--sender is for --json and --format")
    if form == "json":
        return Style(json_line if timestamps else lambda message, _: json_line(message), True)
    if form == "raw":
        return Style((lambda message, _: message.payload) if is_only_one else raw_line)
    if template is None and not timestamps:
        return Style(text_line, lines=text_lines)
    known = FIELDS if sender else FIELDS[: -len(SENDER_FIELDS)]
    return Style(_formatted_line(template or "{time} {key} {payload}", known))


def _formatted_line(template: str, known: tuple[str, ...]) -> Line:
    """Raises ConfigurationError for a template that names anything but `known`, of `FIELDS`."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigurationError(f"--format {template!r}: {error}") from error
    for _, name, spec, conversion in parts:
        if name is not None and (name not in known or spec or conversion):
            fields = ", ".join(f"{{{field}}}" for field in known)
            raise ConfigurationError(f"--format {template!r}: use {fields}, and {{{{ for a brace")

    def line(message: Message, at: float) -> bytes:
        sender = ("-",) * len(SENDER_FIELDS)
        if message.sender is not None:
            sender = msgspec.structs.astuple(message.sender)
        values = (local_time(at), _shown_key(message.key), to_text(message.payload), *sender)
        return f"{template.format(**dict(zip(FIELDS, values, strict=False)))}\n".encode()

    return line


class Losses:
    """What was lost. The first loss is reported at once, and what follows within `LOSSES_SECONDS`,
    or until the end, in one line."""

    def __init__(self) -> None:
        self._messages = 0
        self._places = 0
        self._reported_at = -math.inf

    def add(self, gaps: list[Lost]) -> None:
        """Note these, and report what is due."""
        for gap in gaps:
            if gap.count is None or isinstance(gap, NotKept):
                report_error(str(gap.error()), command="sbusctl")
            else:
                self._messages += gap.count
                self._places += 1
        if time.monotonic() - self._reported_at >= LOSSES_SECONDS:
            self.report()

    def report(self) -> None:
        """Report what was not reported yet, if anything."""
        if self._messages:
            where = "here" if self._places == 1 else f"in {self._places} places"
            text = f"{self._messages} messages were lost {where}: this client read too slowly"
            self._messages = self._places = 0  # first, as Ctrl-C may come while it is printed
            self._reported_at = time.monotonic()
            report_error(text, command="sbusctl")


def print_messages(
    bus: Source,
    style: Style,
    count: int | None,
    seconds: float | None,
    began_at: float | None = None,
) -> bool:
    """Print `count` messages, or until so many `seconds` after a time of `time.monotonic`, now by
    default, or for ever.

    Returns whether none was lost; those that were count, too, other than those from before that a
    service of last values has not kept. Raises BusError if `count` messages have not come in time.
    """
    losses = Losses()
    began_at = time.monotonic() if began_at is None else began_at
    deadline = None if seconds is None else began_at + seconds
    came = lost = 0
    try:
        while count is None or came + lost < count:
            limit = MESSAGES_AT_ONCE_MAX if count is None else count - came - lost
            left_seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
            items = bus.receive_many(min(limit, MESSAGES_AT_ONCE_MAX), timeout_seconds=left_seconds)
            messages = [item for item in items if isinstance(item, Message)]
            gaps = [item for item in items if isinstance(item, Lost)]
            came += len(messages)
            lost += sum(gap.count or 0 for gap in gaps if not isinstance(gap, NotKept))
            if style.lines is not None:
                write(style.lines(messages))
            else:
                _print(items, style)
            if not style.has_losses:
                losses.add(gaps)
    except TimeoutError:
        if count is not None:
            raise BusError(f"{came} of {count} messages came within {seconds:g} s") from None
    finally:
        losses.report()
    return not lost


def _print(items: list[Message | Lost], style: Style) -> None:
    at = time.time()
    line, has_losses = style.line, style.has_losses
    write(
        b"".join(
            [
                line(item, at) if isinstance(item, Message) else loss_line(item)
                for item in items
                if has_losses or isinstance(item, Message)
            ]
        )
    )


@lru_cache(1)
def local_time(at: float) -> str:
    """As in ISO 8601, to the millisecond."""
    return datetime.fromtimestamp(at).isoformat(timespec="milliseconds")


def text_line(message: Message, _at: float = 0.0) -> bytes:
    """`KEY PAYLOAD`; a space within the key is `\\x20`, so the first space ends it."""
    return f"{_shown_key(message.key)} {to_text(message.payload)}\n".encode()


def text_lines(messages: list[Message]) -> bytes:
    """The lines of several messages. Few have anything to escape: that is looked for in all of them
    at once."""
    with suppress(UnicodeDecodeError):
        lines = [f"{_shown_key(message.key)} {message.payload.decode()}" for message in messages]
        together = " ".join(lines)
        if lines and together.isprintable() and "\\" not in together:
            return ("\n".join(lines) + "\n").encode()
    return b"".join(map(text_line, messages))


@lru_cache(1024)
def _shown_key(key: bytes) -> str:
    return to_text(key).replace(" ", "\\x20")


def raw_line(message: Message, _at: float = 0.0) -> bytes:
    """The payload as it came, and a newline."""
    return message.payload + b"\n"


def json_line(message: Message, at: float | None = None) -> bytes:
    """An object with `key` and `payload`, or, where they are not UTF-8, `key_base64` and
    `payload_base64`, and with the `time` and the `sender`, if given. It is in ASCII, which is safe
    on a terminal as well."""
    fields: dict[str, object] = {} if at is None else {"time": at}
    fields |= (_json_field("key", message.key), _json_field("payload", message.payload))
    if message.sender is not None:
        fields["sender"] = msgspec.structs.asdict(message.sender)
    return json.dumps(fields).encode() + b"\n"


def _json_field(name: str, value: bytes) -> tuple[str, str]:
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", base64.b64encode(value).decode()


def loss_line(lost: Lost) -> bytes:
    """An object with `lost`, a number or null, and `reconnected`, a reason, where the connection
    was lost."""
    fields: dict[str, int | str | None] = {"lost": lost.count}
    if isinstance(lost, Reconnected):
        fields["reconnected"] = lost.reason
    return json.dumps(fields).encode() + b"\n"
