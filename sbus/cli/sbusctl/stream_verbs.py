"""The verbs of `sbusctl` that follow a stream: monitor, events."""

import os

import click

from sbus.cli.sbusctl.shared_options import SelectedBus, json_option, report_hints, verb

count_option = click.option("--count", type=click.IntRange(min=1), help="End after this many.")


@verb(
    "sbusctl monitor",
    "sbusctl monitor 'lamps/*/state' --payload",
    "sbusctl monitor '!/presence/*/*' --payload",
    "sbusctl monitor --json | jq 'select(.recipients == 0)'",
)
@click.argument("patterns", type=os.fsencode, nargs=-1, metavar="[PATTERN]...")
@click.option("--payload", is_flag=True, help="Show payloads as well.")
@count_option
@json_option
def monitor(
    selected: SelectedBus,
    patterns: tuple[bytes, ...],
    payload: bool,
    count: int | None,
    as_json: bool,
) -> None:
    """Show the messages whose key matches a PATTERN, or all messages.

    Each line has the time of publication, the publisher (user, program and process), the size of
    the payload in bytes, the number of recipients (? if it cannot be known), and the key. Of a
    secret message only the key is shown. Payloads are base64 in JSON.

    What the bus tells of clients with names, and their last wills, are among the messages, as if
    these clients had published them.

    The bus never waits for a monitor. Messages that are not read in time are missed, and reported
    on standard error, in JSON as {"missed": COUNT}.
    """
    from sbus.cli.sbusctl.stream_output import MessageView, print_stream
    from sbus.client.streams import MessageStream

    report_hints(patterns, selected.link["dialect"])
    with selected.connect_admin() as connection:
        stream = MessageStream(connection, patterns, payload=payload)
        print_stream(stream, MessageView(payload=payload), as_json=as_json, count=count)


@verb("sbusctl events", "sbusctl events --json | jq 'select(.priority <= 4)'")
@count_option
@json_option
def events(selected: SelectedBus, count: int | None, as_json: bool) -> None:
    """Show events as they happen.

    Clients that come and go, packets that are refused, messages that are discarded, and why. Events
    that are not read in time are missed, and reported on standard error, in JSON as
    {"missed": COUNT}.
    """
    from sbus.cli.sbusctl.stream_output import EventView, print_stream
    from sbus.client.streams import EventStream

    with selected.connect_admin() as connection:
        print_stream(EventStream(connection), EventView(), as_json=as_json, count=count)
