"""The demo from start to end: a bus, its subscribers, its publishers, what arrives, the sum.

Everything happens in a private directory. Knows nothing of what the messages mean.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import trio

import sbus
from sbus.demo.cast import Publisher, Subscriber
from sbus.demo.pipeline import make_report, recording
from sbus.demo.processes import START_SECONDS_MAX, DemoFailed, run_client, running_bus
from sbus.demo.publish import Source, open_sources
from sbus.demo.reports import Report
from sbus.demo.screen import say
from sbus.demo.subscribe import END_KEY
from sbus.demo.tally import add_up

PATTERNS = {
    "memory": b"host/*/memory/",
    "busy": b"host/*/cpu/*/busy",
    "network": b"host/*/net/*/rx*",
    "processes": b"host/*/process/",
    "log": b"log/",
    "everything": b"",
}
END_SECONDS_MAX = 20.0
"""For the subscribers to receive what is on its way when the publishers are done."""
INTERRUPTED = 130
EXAMPLES = ("sub 'host/*/cpu/*/busy'", "sub --json log/", "pub greeting/world hello", "ping")


async def run(*, workers: int, seconds: float, stay: bool, pipeline: bool) -> int:
    """The whole demo; returns its exit status, 0 when everything arrived as it was published.

    What the `pipeline` makes of it stays, in a directory of its own.
    """
    status = INTERRUPTED
    with (
        tempfile.TemporaryDirectory(prefix="sbus-demo-") as directory,
        trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
    ):
        address = os.path.join(directory, "bus")
        async with (
            running_bus(address, workers),
            sbus.connect(address) as bus,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_cancel_at_signal, nursery.cancel_scope, signals)
            say(f"sbusd with {workers} workers serves {address}")
            if pipeline:
                kept = Path(tempfile.mkdtemp(prefix="sbus-report-"))
                async with recording(address, kept / "recording"):
                    status = await show(address, bus, seconds)
                await make_report(kept / "recording", kept / "report.html")
            else:
                status = await show(address, bus, seconds)
            if stay:
                await keep_publishing(address)
            nursery.cancel_scope.cancel()
    return status


async def _cancel_at_signal(scope: trio.CancelScope, signals: AsyncIterator[int]) -> None:
    async for _ in signals:
        scope.cancel()


async def show(address: str, bus: sbus.Connection[sbus.Message], seconds: float) -> int:
    """Publish for a while, show what arrives, and add it up; returns the exit status."""
    subscribers = [Subscriber(name, pattern) for name, pattern in PATTERNS.items()]
    sources = open_sources()
    publishers = [Publisher(name) for name in sources]
    async with trio.open_nursery() as receiving:
        started_at = time.monotonic()
        for subscriber in subscribers:
            module = ["sbus.demo.subscribe", "--address", address, "--name", subscriber.name]
            module += ["--", subscriber.pattern.decode()]
            receiving.start_soon(run_client, module, partial(subscriber.hear, started_at))
        await _all_ready(subscribers)
        _introduce(sources)
        async with trio.open_nursery() as publishing:
            for publisher in publishers:
                module = ["sbus.demo.publish", publisher.name, "--address", address]
                module += ["--seconds", str(seconds)]
                publishing.start_soon(run_client, module, publisher.hear)
        # They have synced and gone: for everybody, this comes after all that they said.
        await bus.publish(END_KEY)
        receiving.cancel_scope.deadline = trio.current_time() + END_SECONDS_MAX
    tally = add_up(publishers, subscribers)
    say()
    for line in tally.lines:
        say(line)
    return 0 if tally.everything_arrived else 1


async def _all_ready(subscribers: list[Subscriber]) -> None:
    with trio.move_on_after(START_SECONDS_MAX) as scope:
        for subscriber in subscribers:
            await subscriber.ready.wait()
    if scope.cancelled_caught:
        raise DemoFailed(f"its subscribers were not ready within {START_SECONDS_MAX:.0f} s")


def _introduce(sources: dict[str, Source]) -> None:
    say(f"{len(PATTERNS)} subscribers and {len(sources)} publishers, each a process of its own:")
    for name, source in sources.items():
        say(f"  {name:<10}  publishes {source.origin}")
    say()
    say(" time  subscriber    new  one of them")


async def keep_publishing(address: str) -> None:
    """Keep the bus busy and tell the user what to try; until cancelled."""
    sbusctl = Path(sys.executable).with_name("sbusctl")
    say()
    say("The bus stays up and the publishers go on. Try, from another terminal:")
    say(f"  export SBUS_ADDRESS={address}")
    for arguments in EXAMPLES:
        say(f"  {sbusctl} {arguments}")
    say("Ctrl-C here ends it.")
    async with trio.open_nursery() as publishing:
        for name in open_sources():
            module = ["sbus.demo.publish", name, "--address", address]
            publishing.start_soon(run_client, module, _ignore)
        await trio.sleep_forever()


def _ignore(report: Report) -> None:
    """Nobody adds up what is published while the bus stays."""
