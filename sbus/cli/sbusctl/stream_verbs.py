"""The verbs of `sbusctl` that show what goes on as it goes on: monitor, events.

This module holds no logic: what is shown is in `watching.py`.
"""

import os

import click

from sbus.cli.sbusctl.target import Target

count_option = click.option("--count", type=click.IntRange(min=1), help="End after so many.")
json_option = click.option("--json", "as_json", is_flag=True, help="A JSON object on each line.")


@click.command(
    epilog="""\b
Examples:
  sbusctl monitor
  sbusctl monitor 'lamps/*/state' --payload
  sbusctl monitor --json | jq 'select(.recipients == 0)'"""
)
@click.argument("patterns", type=os.fsencode, nargs=-1, metavar="[PATTERN]...")
@click.option("--payload", is_flag=True, help="Show what the messages hold as well.")
@count_option
@json_option
@click.pass_obj
def monitor(
    target: Target, patterns: tuple[bytes, ...], payload: bool, count: int | None, as_json: bool
) -> None:
    """Show the messages whose key matches a PATTERN, or all: a line each.

    When it was published, by whom (uid, program and process), its payload's size in bytes, how many
    clients receive it (? where that cannot be known), and its key. Of secret messages only the key
    is shown. Nothing on the bus waits for this: what is not read in time is missed, and reported on
    standard error, in JSON as {"missed": COUNT}. Payloads are base64 in JSON.
    """
    from sbus.cli.sbusctl.watching import MessageView, print_stream
    from sbus.client.streams import MessageStream

    with target.connect_admin() as connection:
        stream = MessageStream(connection, patterns, payload=payload)
        print_stream(stream, MessageView(payload=payload), as_json=as_json, count=count)


@click.command(
    epilog="""\b
Examples:
  sbusctl events
  sbusctl events --json | jq 'select(.priority <= 4)'"""
)
@count_option
@json_option
@click.pass_obj
def events(target: Target, count: int | None, as_json: bool) -> None:
    """Show what happens on the bus: who comes and goes and why, what is refused or discarded.

    What is not read in time is missed, and reported on standard error, in JSON as
    {"missed": COUNT}.
    """
    from sbus.cli.sbusctl.watching import EventView, print_stream
    from sbus.client.streams import EventStream

    with target.connect_admin() as connection:
        print_stream(EventStream(connection), EventView(), as_json=as_json, count=count)
