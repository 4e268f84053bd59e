"""The verbs of `sbusctl` that ask other clients, and answer them: request, reply, last-values."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from sbus.cli.sbusctl.shared_options import SelectedBus, hinted, verb
from sbus.cli.terminal.ending_signals import exiting_on_signals
from sbus.client.link import PACKET_BYTES_MAX
from sbus.client.replies import REQUEST_SECONDS
from sbus.client.value_store import BYTES_MAX, KEYS_MAX
from sbus.errors import BusError
from sbus.unix.standard_streams import INPUT, OUTPUT

if TYPE_CHECKING:
    from sbus.client.blocking_streams import Request

COMMAND_SECONDS = 30.0
_LAST_WORD_SECONDS = 1.0
"""For telling a requester that its command was killed, as this program ends."""


@verb("sbusctl request sums/today '1 2 3'", "sbusctl request upper/x < letter.txt")
@click.argument("key", type=os.fsencode)
@click.argument("payload", type=os.fsencode, required=False)
@click.option(
    "--timeout",
    "seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=REQUEST_SECONDS,
    show_default=True,
    help="Fail if no answer has come within this time.",
)
def request(selected: SelectedBus, key: bytes, payload: bytes | None, seconds: float) -> None:
    """Send a request under KEY, and print the answer.

    Without PAYLOAD, that is standard input. On a terminal, the answer is a line, in which bytes
    that could act on it are shown as \\xNN; elsewhere, it is printed unchanged. Fails at once if
    nobody listens, and with the answerer's reason if it could not do what the request asks for.
    """
    from sbus.cli.terminal.standard_output import write
    from sbus.protocol.text import to_text

    if payload is None:
        with open(INPUT, "rb", closefd=False) as stream:
            payload = stream.read(PACKET_BYTES_MAX + 1)  # more is refused
    with selected.connect(seconds) as bus:
        answer = bus.request(key, payload, timeout_seconds=seconds)
    write(to_text(answer).encode() + b"\n" if os.isatty(OUTPUT) else answer)


@verb("sbusctl reply motd 'Nothing new.'", "sbusctl reply 'upper/*' --exec 'tr a-z A-Z'")
@click.argument("pattern", type=os.fsencode)
@click.argument("payload", type=os.fsencode, required=False)
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Answer with the output of this command of the shell. Its input is the request's payload, "
    "and SBUS_KEY its key. If it fails, the requester learns its exit status.",
)
@click.option(
    "--exec-timeout",
    "seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=COMMAND_SECONDS,
    show_default=True,
    help="Kill the command, with all processes of its group, after this time; then it has failed.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after this many requests.")
def reply(
    selected: SelectedBus,
    pattern: bytes,
    payload: bytes | None,
    command: str | None,
    seconds: float,
    count: int | None,
) -> None:
    """Answer requests whose keys match PATTERN, one after the other.

    The answer is PAYLOAD, or the output of a command. A command that runs when this program is
    ended is killed, and its requester told so.
    """
    if (payload is None) == (command is None):
        raise click.UsageError("an answer is either PAYLOAD or the output of --exec")
    answered = 0
    with (
        exiting_on_signals(),
        hinted((pattern,), selected.link["dialect"]),
        selected.connect() as bus,
        bus.requests(pattern) as requests,
    ):
        while count is None or answered < count:
            received = requests.receive()
            if command is None:
                received.reply(payload or b"")
            else:
                _answer_with_output(received, command, seconds)
            answered += 1
        bus.sync()


def _answer_with_output(received: "Request", command: str, seconds: float) -> None:
    from sbus.cli.sbusctl.answer_command import CommandFailed, output_of

    try:
        output = output_of(command, received.key, received.payload, seconds)
    except CommandFailed as failure:
        received.fail(str(failure))
    except (KeyboardInterrupt, SystemExit):
        with suppress(TimeoutError, BusError):  # they are of no interest any more
            text = "the command was killed, because the program that answers was ended"
            received.fail(text, timeout_seconds=_LAST_WORD_SECONDS)
        raise
    else:
        received.reply(output)


@verb("sbusctl last-values sensors/ lamps/*/state", "sbusctl sub --last sensors/")
@click.argument("patterns", type=os.fsencode, nargs=-1, required=True, metavar="PATTERN...")
@click.option(
    "--keys-max",
    type=click.IntRange(min=1),
    default=KEYS_MAX,
    show_default=True,
    help="Keys to keep.",
)
@click.option(
    "--bytes-max",
    type=click.IntRange(min=1),
    default=BYTES_MAX,
    show_default=True,
    help="Bytes of keys and payloads to keep.",
)
@click.option(
    "--reconnect",
    is_flag=True,
    help="When the bus goes away, wait until it is back, and go on with what is published then.",
)
def last_values(
    selected: SelectedBus,
    patterns: tuple[bytes, ...],
    keys_max: int,
    bytes_max: int,
    reconnect: bool,
) -> None:
    """Keep the newest message of each key that matches a PATTERN, for `sbusctl sub --last`.

    Runs until it is interrupted, and knows what was published since it was started. When it keeps
    too much, it forgets the messages that were not replaced for the longest time.
    """
    with (
        hinted(patterns, selected.link["dialect"]),
        selected.connect_with_losses(reconnect=reconnect, sender=True) as bus,
    ):
        bus.serve_last_values(*patterns, keys_max=keys_max, bytes_max=bytes_max)
