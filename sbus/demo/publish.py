"""A publisher of the demo, a process of its own: `python -m sbus.demo.publish SOURCE ...`.

Publishes what one source has to say, round after round, until its time is up, and reports each
message. An ordinary client, in plain blocking Python: knows no subscriber.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import click

from sbus import blocking
from sbus.demo import logs, samples
from sbus.demo.names import call_myself
from sbus.demo.reports import Published, tell
from sbus.demo.samples import Message
from sbus.errors import SbusError

SOURCES = ("machine", "processes", "log")


class Source(NamedTuple):
    """Something to publish: where it comes from, its rounds, and the time between two."""

    origin: str
    rounds: Iterator[list[Message]]
    interval_seconds: float


def open_source(name: str) -> Source | None:
    """The source of that name; None when this host has nothing of the kind."""
    host = samples.host_name()
    if name == "machine":
        origin = "/proc/loadavg, meminfo, stat, net/dev"
        return Source(origin, samples.machine(host), interval_seconds=0.25)
    if name == "processes":
        return Source("/proc/PID/stat", samples.processes(host), interval_seconds=0.5)
    log = logs.find_log()
    if log is None:
        return None
    origin = f"{log.origin}, its last {len(log.lines)} lines"
    return Source(origin, logs.messages(log), interval_seconds=0.1)


def open_sources() -> dict[str, Source]:
    """By name, all that this host has."""
    sources = {name: open_source(name) for name in SOURCES}
    return {name: source for name, source in sources.items() if source is not None}


@click.command()
@click.argument("name", type=click.Choice(SOURCES))
@click.option("--address", required=True)
@click.option("--seconds", type=float, help="When to stop; without it, never.")
def main(name: str, address: str, seconds: float | None) -> None:
    call_myself(f"demo-{name}")
    source = open_source(name)
    if source is None:
        raise click.ClickException(f"this host has no {name} to publish")
    try:
        publish(source, address, seconds)
    except SbusError as error:
        raise click.ClickException(str(error)) from error


def publish(source: Source, address: str, seconds: float | None) -> None:
    end = None if seconds is None else time.monotonic() + seconds
    with blocking.connect(address) as bus:
        for messages in source.rounds:
            for key, payload in messages:
                bus.publish(key, payload)
                tell(Published(key, payload))
            if end is not None and time.monotonic() + source.interval_seconds >= end:
                break
            time.sleep(source.interval_seconds)
        bus.sync()


if __name__ == "__main__":
    main()
