"""The verbs of `sbusctl` that send and receive messages: pub, sub, whoami, ping.

They need no rights, and the blocking client only.
"""

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from sbus.cli.sbusctl.shared_options import SelectedBus, hinted, json_option, verb
from sbus.client.link import PACKET_BYTES_MAX
from sbus.errors import BusError
from sbus.protocol.controls import AGE_MS_MAX
from sbus.unix.standard_streams import INPUT, OUTPUT

if TYPE_CHECKING:
    from sbus.client.blocking import Connection
    from sbus.client.blocking_streams import Subscription
    from sbus.protocol.packets import Message


_CHUNK_BYTES = 256 * 1024
"""Read at a time; a pipe usually has 64 KiB."""


# -- pub -------------------------------------------------------------------------------------------
class _NumbersAsPayload(click.Command):
    """A command after whose KEY a negative number is no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        *before, last = args or [""]
        is_behind_key = bool(before) and "--" not in before and not before[-1].startswith("-")
        if is_behind_key and re.fullmatch(r"-\.?[0-9].*", last):
            args = [*before, "--", last]
        return super().parse_args(ctx, args)


@verb(
    "sbusctl pub lamps/3/state on",
    "tail -f app.log | sbusctl pub logs/app",
    "sbusctl pub --file photo.jpeg camera/door",
    "sbusctl pub --receipt alarms/fire kitchen || call-somebody",
    kind=_NumbersAsPayload,
)
@click.argument("key", type=os.fsencode)
@click.argument("payload", type=os.fsencode, required=False)
@click.option(
    "--file",
    "files",
    type=click.Path(readable=False),
    multiple=True,
    metavar="FILE",
    help="Publish the content of FILE as one message; - is standard input. Repeatable.",
)
@click.option(
    "--receipt",
    is_flag=True,
    help="Print for each message to how many clients it was sent, for how many it waits, and how "
    "many have lost it. Fails if one had no receiver.",
)
@click.option("--json", "as_json", is_flag=True, help="With --receipt: print these as JSON.")
def pub(
    selected: SelectedBus,
    key: bytes,
    payload: bytes | None,
    files: tuple[str, ...],
    receipt: bool,
    as_json: bool,
) -> None:
    """Publish PAYLOAD under KEY.

    Without PAYLOAD, publish each line of standard input. Returns when the bus has processed all
    messages, and fails with the bus's reason if it refused one. With --receipt, each message waits
    for the receipt of the one before.
    """
    if payload is not None and files:
        raise click.UsageError("a message is either PAYLOAD or --file, not both")
    if as_json and not receipt:
        raise click.UsageError("--json is for --receipt")
    payloads: Iterable[bytes] = _contents(files) if files else _lines(_standard_input())
    if payload is not None:
        payloads = [payload]
    with selected.connect() as bus:
        if receipt:
            from sbus.cli.sbusctl.receipt_output import publish_with_receipts

            publish_with_receipts(bus, key, payloads, as_json=as_json)
        else:
            _publish_all(bus, key, payloads)


def _standard_input() -> BinaryIO:
    return open(INPUT, "rb", closefd=False)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines as they arrive, without newlines. One that is too long for a packet is read only so
    far that the bus refuses it, as an endless line would fill the memory."""
    rest = b""
    while chunk := os.read(stream.fileno(), _CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) > PACKET_BYTES_MAX:
            yield rest
            rest = b""
    if rest:
        yield rest


def _contents(paths: Iterable[str]) -> Iterator[bytes]:
    """The content of each file, read as far as `_lines` reads a line."""
    for path in paths:
        if path == "-":
            yield _standard_input().read(PACKET_BYTES_MAX + 1)
        else:
            with open(path, "rb") as file:
                yield file.read(PACKET_BYTES_MAX + 1)


def _publish_all(bus: "Connection[Message]", key: bytes, payloads: Iterable[bytes]) -> None:
    """Publish each payload, and return when the bus has processed the last. Raises PacketRefused
    when it refused one; for a key that it refuses, after the first."""
    left = iter(payloads)
    bus.publish_many(key, islice(left, 1))
    bus.sync()
    bus.publish_many(key, left)
    bus.sync()


# -- sub -------------------------------------------------------------------------------------------
@verb(
    "sbusctl sub 'lamps/*/state'",
    "sbusctl sub --json '' | jq .payload",
    "sbusctl sub --raw --count 1 camera/door > photo.jpeg",
    "sbusctl sub --reconnect alarms/ >> alarms.log",
    "sbusctl sub --last sensors/",
    'sbusctl sub jobs/ | while read -r job; do work "$job"; done',
    "sbusctl sub --format '{time} {payload}' --count 1 --timeout 5 alarms/",
)
@click.argument("patterns", type=os.fsencode, nargs=-1, required=True, metavar="PATTERN...")
@click.option(
    "--raw",
    "form",
    flag_value="raw",
    help="Print payloads only, unchanged, with a newline each unless --count is 1.",
)
@click.option("--json", "form", flag_value="json", help="Print JSON, one object per line.")
@click.option(
    "--format",
    "template",
    metavar="TEMPLATE",
    help="Print a line of text with {time}, {key} and {payload} in their places.",
)
@click.option(
    "--sender",
    is_flag=True,
    help="Tell who has published each message: in JSON, or where a --format has {place}, {client}, "
    "{gid}, {uid} or {pid}. Nobody knows that of messages which --last begins with: no sender in "
    "JSON, and - in a format.",
)
@click.option("--timestamps", is_flag=True, help="Print when each message came, too.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option(
    "--timeout",
    "seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="End after this time; that is a failure if --count messages have not come.",
)
@click.option(
    "--reconnect",
    is_flag=True,
    help="When the bus goes away, wait until it is back, and go on with a line that says so.",
)
@click.option(
    "--last",
    "with_last",
    is_flag=True,
    help="Begin with the newest message of each key, which sbusctl last-values has kept. What it "
    "has not kept is reported, and does not count.",
)
@click.option(
    "--last-by",
    "keeper",
    metavar="USER",
    help="With --last: trust the sbusctl last-values of this user.  [default: of yourself, and "
    "of root]",
)
@click.option(
    "--soft",
    type=click.Choice(["queue", "discard", "block", "error"]),
    help="What the bus does when output is too slow and the socket is full; with block, your own "
    "publishers wait.  [default: the choice of the bus, mostly queue]",
)
@click.option(
    "--hard",
    type=click.Choice(["discard", "block", "error"]),
    help="What the bus does when the backlog is full as well.",
)
@click.option(
    "--order",
    type=click.Choice(["queue", "stack", "random", "latest"]),
    help="Order in which the bus sends the backlog: oldest, newest or largest first, or oldest "
    "first with only the newest message of each key.",
)
@click.option(
    "--age",
    "age_seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0.001, max=AGE_MS_MAX / 1000),
    help="Drop messages that have waited for longer in the backlog.",
)
def sub(
    selected: SelectedBus,
    patterns: tuple[bytes, ...],
    form: str | None,
    template: str | None,
    sender: bool,
    timestamps: bool,
    count: int | None,
    seconds: float | None,
    reconnect: bool,
    with_last: bool,
    keeper: str | None,
    soft: str | None,
    hard: str | None,
    order: str | None,
    age_seconds: float | None,
) -> None:
    """Print the messages that match a PATTERN.

    Each line is a key, a space and a payload. Bytes that could act on a terminal, or are not UTF-8,
    are shown as \\xNN, and a backslash as \\\\. In JSON, a key or payload that is not UTF-8 is
    key_base64 or payload_base64. Messages that the bus dropped are reported on standard error, with
    --json instead among the messages as {"lost": COUNT}; they count, and with --count the exit
    status is 1. With --reconnect, messages may be missing where the connection was lost: standard
    error says so, or with --json {"lost": null, "reconnected": REASON} among the messages.

    If output is slow, messages wait in the bus, and are dropped when there are too many. Publishers
    wait for it only with --soft block or --hard block.
    """
    from sbus.cli.sbusctl.message_output import Source, print_messages, style_of

    if form == "raw" and os.isatty(OUTPUT):
        raise click.UsageError("--raw could do anything to a terminal: send it to a file or a pipe")
    if (template and (form or timestamps)) or (form == "raw" and timestamps):
        raise click.UsageError("--format and --timestamps are for lines of text, or for JSON")
    if with_last and len(patterns) > 1:
        raise click.UsageError("--last takes one PATTERN")
    if keeper is not None and not with_last:
        raise click.UsageError("--last-by is for --last")
    style = style_of(form, template, timestamps=timestamps, sender=sender, is_only_one=count == 1)
    age = None if age_seconds is None else f"{age_seconds * 1000:.0f}"
    with selected.connect_with_losses(reconnect=reconnect, sender=sender) as bus:
        names = ("blocking/soft", "blocking/hard", "order", "age")
        for key, choice in zip(names, (soft, hard, order, age), strict=True):
            if choice is not None:
                bus.control(f"{key}/{choice}")
                bus.sync()
        began_at = time.monotonic()
        with ExitStack() as streams:
            with hinted(patterns, selected.link["dialect"]):
                messages: Source = bus
                if with_last:
                    messages = _last_values(streams, bus, patterns[0], keeper, seconds)
                else:
                    _subscribe(bus, patterns)
            has_all = print_messages(messages, style, count, seconds, began_at)
            if count is not None and not has_all:
                sys.exit(1)


def _subscribe(bus: "Connection[Any]", patterns: Iterable[bytes]) -> None:
    for pattern in patterns:
        bus.subscribe(pattern)
    bus.sync()


def _last_values(
    streams: ExitStack,
    bus: "Connection[Any]",
    pattern: bytes,
    keeper: str | None,
    seconds: float | None,
) -> "Subscription[Any]":
    """Raises BusError if no service has answered after so many seconds, or as many as usual."""
    from sbus.client.snapshot import JOIN_SECONDS
    from sbus.unix.users import user_id

    seconds = JOIN_SECONDS if seconds is None else min(seconds, JOIN_SECONDS)
    uid = None if keeper is None else user_id(keeper)
    try:
        return streams.enter_context(bus.last_values(pattern, uid=uid, timeout_seconds=seconds))
    except TimeoutError:
        raise BusError(
            f"no service has given these last values within {seconds:g} s: perhaps nobody "
            "keeps them (sbusctl last-values)"
        ) from None


# -- whoami and ping -------------------------------------------------------------------------------
@verb("sbusctl whoami", "sbusctl whoami --json | jq .uid")
@json_option
def whoami(selected: SelectedBus, as_json: bool) -> None:
    """Print the peer credentials that the bus sees: !/cred/GID/UID/PID."""
    from sbus.cli.terminal.standard_output import write_json, write_line
    from sbus.protocol.text import to_text

    with selected.connect() as bus:
        identity = bus.whoami()
    key = to_text(identity.key)
    if as_json:
        write_json({"key": key, "gid": identity.gid, "uid": identity.uid, "pid": identity.pid})
    else:
        write_line(key)


@verb("sbusctl ping --count 5 --interval 0.2", "sbusctl ping --json --count 5 | tail -n 1")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many pings.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Seconds between two pings.",
)
@click.option(
    "--size", type=click.IntRange(min=0), default=56, show_default=True, help="Payload bytes."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds after which a ping counts as lost.",
)
@json_option
def ping(
    selected: SelectedBus,
    count: int | None,
    interval: float,
    size: int,
    timeout: float,
    as_json: bool,
) -> None:
    """Measure the round trip of a message through the bus.

    Fails if none came back. In JSON, the summary is the last object.
    """
    from sbus.cli.sbusctl.round_trips import PingPlan, measure_round_trips
    from sbus.protocol.keys import DIALECTS

    plan = PingPlan(
        count=count,
        interval_seconds=interval,
        size_bytes=size,
        timeout_seconds=timeout,
        as_json=as_json,
    )
    with selected.connect(timeout) as bus:
        trips = measure_round_trips(bus, DIALECTS[selected.link["dialect"]], plan)
    if not trips.received:
        sys.exit(1)
