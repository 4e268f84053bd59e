"""The verbs of `sbusctl` that send and receive messages: pub, sub, whoami, ping.

What they do is in `publishing.py`, `subscribing.py` and `pinging.py`, and loaded when it is done.
They need no rights, and the blocking client only. This module holds no logic.
"""

import os
import sys

import click

import sbus
from sbus.cli.sbusctl.target import Target
from sbus.unix.standard_streams import OUTPUT


@click.command(
    epilog="""\b
Examples:
  sbusctl pub lamps/3/state on
  tail -f app.log | sbusctl pub logs/app
  sbusctl pub --file photo.jpeg camera/door"""
)
@click.argument("key", type=os.fsencode)
@click.argument("payload", type=os.fsencode, required=False)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    help="Send what FILE holds as one message; - is standard input. Repeatable.",
)
@click.pass_obj
def pub(
    target: Target,
    key: bytes,
    payload: bytes | None,
    files: tuple[str, ...],
) -> None:
    """Publish PAYLOAD under KEY.

    Where there is no PAYLOAD, each line of standard input. Ends when the bus has processed it all,
    and fails with the bus's reason if it refused it.
    """
    from sbus.cli.sbusctl.publishing import contents, lines, publish_all, standard_input

    if payload is not None and files:
        raise click.UsageError("a message is either PAYLOAD or --file, not both")
    with sbus.blocking.connect(target.address, **target.options) as bus:
        if payload is not None:
            publish_all(bus, key, [payload])
        elif files:
            publish_all(bus, key, contents(files))
        else:
            publish_all(bus, key, lines(standard_input()))


@click.command(
    epilog="""\b
Examples:
  sbusctl sub 'lamps/*/state'
  sbusctl sub --json '' | jq .payload
  sbusctl sub --raw --count 1 camera/door > photo.jpeg
  sbusctl sub --soft block jobs/ | while read -r job; do work "$job"; done"""
)
@click.argument("patterns", type=os.fsencode, nargs=-1, required=True, metavar="PATTERN...")
@click.option("--raw", "form", flag_value="raw", help="Payloads only, as they are, a newline each.")
@click.option("--json", "form", flag_value="json", help="A JSON object on each line.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option(
    "--soft",
    type=click.Choice(["queue", "discard", "block", "error"]),
    help="What the bus is to do when output is too slow and the socket full.",
)
@click.option(
    "--hard",
    type=click.Choice(["discard", "block", "error"]),
    help="What it is to do when its backlog for us is full as well.",
)
@click.option(
    "--order",
    type=click.Choice(["queue", "stack", "random"]),
    help="How it is to send that backlog: oldest, newest or largest first.",
)
@click.pass_obj
def sub(
    target: Target,
    patterns: tuple[bytes, ...],
    form: str | None,
    count: int | None,
    soft: str | None,
    hard: str | None,
    order: str | None,
) -> None:
    """Print the messages that match a PATTERN.

    A line for each: the key, a space and the payload. What could act on a terminal, and what is no
    UTF-8, is shown as \\xNN, a backslash as \\\\. In JSON it is key_base64 and payload_base64 where
    they are no UTF-8. Messages that the bus dropped are reported on standard error, in JSON as
    {"lost": COUNT}.
    """
    from sbus.cli.sbusctl.subscribing import choose, print_messages, subscribe_all

    if form == "raw" and os.isatty(OUTPUT):
        raise click.UsageError("--raw could do anything to a terminal: send it to a file or a pipe")
    with sbus.blocking.connect(target.address, losses="report", **target.options) as bus:
        choose(bus, soft=soft, hard=hard, order=order)
        subscribe_all(bus, patterns)
        print_messages(bus, form or "text", count)


@click.command(epilog="\b\nExample:\n  sbusctl whoami")
@click.pass_obj
def whoami(target: Target) -> None:
    """Print who the bus takes us for: !/cred/GID/UID/PID."""
    from sbus.cli.terminal.exit_status import write
    from sbus.protocol.text import to_text

    with sbus.blocking.connect(target.address, **target.options) as bus:
        write(to_text(bus.whoami().key).encode() + b"\n")


@click.command(epilog="\b\nExample:\n  sbusctl ping --count 5 --interval 0.2")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many pings.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Seconds between two pings.",
)
@click.option(
    "--size", type=click.IntRange(min=0), default=56, show_default=True, help="Payload, in bytes."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds after which an answer is taken for lost.",
)
@click.pass_obj
def ping(
    target: Target,
    count: int | None,
    interval: float,
    size: int,
    timeout: float,
) -> None:
    """Measure how long messages take to the bus and back. Fails when none came back."""
    from sbus.cli.sbusctl.pinging import PingPlan
    from sbus.cli.sbusctl.pinging import ping as run_ping
    from sbus.protocol.keys import DIALECTS

    plan = PingPlan(
        count=count, interval_seconds=interval, size_bytes=size, timeout_seconds=timeout
    )
    with sbus.blocking.connect(target.address, timeout_seconds=timeout, **target.options) as bus:
        trips = run_ping(bus, DIALECTS[target.options["dialect"]], plan)
    if not trips.received:
        sys.exit(1)
