"""The demo from start to end: its command line, its subscribers and publishers, the verdict."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import click
import trio

import sbus
from sbus.demo.clients import END_KEY, Source, open_sources
from sbus.demo.processes import (
    START_SECONDS_MAX,
    DemoFailed,
    installing,
    make_report,
    recording,
    run_client,
    running_bus,
)
from sbus.demo.tally import Publisher, Subscriber, add_up
from sbus.errors import SbusError

SECONDS_MAX = 60.0
"""Every message is kept until the end, so there must be one."""
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


async def run(workers: int, seconds: float, stay: bool, pipeline: bool, set_up: Path | None) -> int:
    """The whole demo; returns its exit status, 0 when everything arrived as it was published.

    The bus has a private directory. The recording and the report of the `pipeline` stay, in a
    directory of their own. If that has to be installed first, in the checkout `set_up`, everything
    is shown once before, and once more when it can be recorded.
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
            click.echo(f"sbusd with {workers} workers serves {address}")
            if not pipeline:
                status = await show(address, bus, seconds)
            elif set_up is None:
                status = await show_recorded(address, bus, seconds, sys.executable)
            else:
                async with installing(set_up) as is_installed:
                    status = await show(address, bus, seconds)
                    await is_installed()
                click.echo("\nOnce more, and recorded:")
                python = str(set_up / ".venv/bin/python")
                status = await show_recorded(address, bus, seconds, python) or status
            if stay:
                await keep_publishing(address)
            nursery.cancel_scope.cancel()
    return status


async def show_recorded(
    address: str, bus: sbus.Connection[sbus.Message], seconds: float, python: str
) -> int:
    """As `show`; this Python, which has what that needs, records it and makes a page of it."""
    kept = Path(tempfile.mkdtemp(prefix="sbus-report-"))
    async with recording(address, kept / "recording", python):
        status = await show(address, bus, seconds)
    await make_report(kept / "recording", kept / "report.html", python)
    return status


async def _cancel_at_signal(scope: trio.CancelScope, signals: AsyncIterator[int]) -> None:
    async for _ in signals:
        scope.cancel()


async def show(address: str, bus: sbus.Connection[sbus.Message], seconds: float) -> int:
    """Publish for a while, show what arrives, and add it up; returns the exit status."""
    started_at = time.monotonic()
    subscribers = [Subscriber(name, pattern, started_at) for name, pattern in PATTERNS.items()]
    sources = open_sources()
    publishers = [Publisher(name) for name in sources]
    async with trio.open_nursery() as receiving:
        for its in subscribers:
            arguments = ["--subscribe", its.pattern.decode()]
            receiving.start_soon(run_client, address, its.name, arguments, its.hear)
        with trio.move_on_after(START_SECONDS_MAX) as scope:
            for subscriber in subscribers:
                await subscriber.ready.wait()
        if scope.cancelled_caught:
            raise DemoFailed(f"its subscribers were not ready within {START_SECONDS_MAX:.0f} s")
        _introduce(sources)
        async with trio.open_nursery() as publishing:
            for publisher in publishers:
                name = publisher.name
                arguments = ["--publish", name, "--seconds", str(seconds)]
                publishing.start_soon(run_client, address, name, arguments, publisher.hear)
        # The publishers have synced and gone: this comes after everything that they published.
        await bus.publish(END_KEY)
        receiving.cancel_scope.deadline = trio.current_time() + END_SECONDS_MAX
    lines, everything_arrived = add_up(publishers, subscribers)
    for line in ("", *lines):
        click.echo(line)
    return 0 if everything_arrived else 1


def _introduce(sources: dict[str, Source]) -> None:
    click.echo(
        f"{len(PATTERNS)} subscribers and {len(sources)} publishers, each a process of its own:"
    )
    for name, source in sources.items():
        click.echo(f"  {name:<10}  publishes {source.origin}")
    click.echo()
    click.echo(" time  subscriber    new  one of them")


async def keep_publishing(address: str) -> None:
    """Keep the bus busy and tell the user what to try; until cancelled."""
    sbusctl = Path(sys.executable).with_name("sbusctl")
    click.echo()
    click.echo("The bus stays up and the publishers go on. Try, from another terminal:")
    click.echo(f"  export SBUS_ADDRESS={address}")
    for example in EXAMPLES:
        click.echo(f"  {sbusctl} {example}")
    click.echo("Ctrl-C here ends it.")
    async with trio.open_nursery() as publishing:
        for name in open_sources():
            # What is published from now on is not added up.
            arguments = ["--publish", name]
            publishing.start_soon(run_client, address, name, arguments, lambda report: None)
        await trio.sleep_forever()


@click.command(context_settings={"show_default": True})
@click.option("--workers", type=click.IntRange(1, 64), default=4)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, SECONDS_MAX),
    default=5.0,
    help="How long to publish before everything is added up.",
)
@click.option("--stay", is_flag=True, help="Keep the bus up afterwards, to try it, until Ctrl-C.")
@click.option(
    "--pipeline/--no-pipeline",
    default=True,
    help="Record it all, and have Spark make a page of it at the end.",
)
@click.option("--set-up", type=click.Path(path_type=Path), hidden=True)
def main(workers: int, seconds: float, stay: bool, pipeline: bool, set_up: Path | None) -> None:
    """Show the bus at work on this host's own data.

    Ends with 0 when every subscriber received exactly what was published for it.
    """
    try:
        status = trio.run(run, workers, seconds, stay, pipeline, set_up)
    except* SbusError as group:
        for line in _texts(group):
            click.echo(f"demo: {line}", err=True)
        sys.exit(1)
    except* BrokenPipeError:
        # Nobody reads what the demo prints any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(status)


def _texts(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for inner in error.exceptions for text in _texts(inner)]
    return [str(error)]


if __name__ == "__main__":
    main()
