"""The clients of the demo, each a process of its own: `python -m sbus.demo.clients`.

A publisher publishes what one source yields, round after round, until its time is up. A subscriber
receives what its pattern matches, until the message that ends the demo: in the total order, that
one comes after everything that was published before it. Both report what they do as lines of JSON
on standard output.
"""

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import trio

import sbus
from sbus import blocking
from sbus.demo import logs, samples
from sbus.demo.samples import Message
from sbus.errors import SbusError

END_KEY = b"demo/end"


# -- reports ------------------------------------------------------------------------------------
class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The subscription is in force: everything that is published from now on arrives."""


class Carried(msgspec.Struct, frozen=True, tag="carried"):
    """A message that this client published or received."""

    key: bytes
    payload: bytes


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The bus dropped `count` messages for this client; None when it does not know how many."""

    count: int | None


Report = Ready | Carried | Lost

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def report(what: Report) -> None:
    """Write one line of JSON, which contains no other newline."""
    sys.stdout.buffer.write(_encoder.encode(what) + b"\n")
    sys.stdout.buffer.flush()


def decode_report(line: bytes) -> Report:
    """The report of one line; `msgspec.DecodeError` when it is none."""
    return _decoder.decode(line)


# -- a publisher --------------------------------------------------------------------------------
class Source(NamedTuple):
    """Something to publish: where it comes from, its rounds, and the time between two."""

    origin: str
    rounds: Iterator[list[Message]]
    interval_seconds: float


def open_sources() -> dict[str, Source]:
    """By name, the sources that this host has; not every host has a log."""
    host = samples.host_name()
    sources = {
        "machine": Source("/proc/loadavg, meminfo, stat, net/dev", samples.machine(host), 0.25),
        "processes": Source("/proc/PID/stat", samples.processes(host), 0.5),
    }
    if (log := logs.find_log()) is not None:
        origin = f"{log.origin}, its last {len(log.lines)} lines"
        sources["log"] = Source(origin, logs.messages(log), 0.1)
    return sources


def publish(source: Source, address: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    with blocking.connect(address) as bus:
        for messages in source.rounds:
            for key, payload in messages:
                bus.publish(key, payload)
                report(Carried(key, payload))
            if time.monotonic() + source.interval_seconds >= end:
                break
            time.sleep(source.interval_seconds)
        bus.sync()


# -- a subscriber -------------------------------------------------------------------------------
async def subscribe(address: str, pattern: bytes) -> None:
    async with sbus.connect(address, losses="report") as bus:
        await bus.subscribe(pattern)
        await bus.subscribe(END_KEY)
        await bus.sync()
        report(Ready())
        async for item in bus:
            if isinstance(item, sbus.Lost):
                report(Lost(item.count))
            elif item.key == END_KEY:
                return
            else:
                report(Carried(item.key, item.payload))


# -- the command line ---------------------------------------------------------------------------
@click.command()
@click.option("--address", required=True)
@click.option("--name", required=True)
@click.option("--publish", "source", help="The name of a source of this host.")
@click.option("--seconds", type=float, default=math.inf, help="How long to publish.")
@click.option("--subscribe", "pattern", default="", help="What to receive, instead.")
def main(address: str, name: str, source: str | None, seconds: float, pattern: str) -> None:
    """Run one client; the bus shows its process by the name `demo-NAME`."""
    Path("/proc/self/comm").write_text(f"demo-{name}")
    if source is None:
        trio.run(subscribe, address, pattern.encode())
    elif (found := open_sources().get(source)) is not None:
        publish(found, address, seconds)
    else:
        raise click.ClickException(f"this host has no {source} to publish")


if __name__ == "__main__":
    try:
        main()
    except SbusError as error:
        sys.exit(f"demo: {error}")
