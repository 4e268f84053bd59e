"""The demo's processes: the bus, its clients, the recorder and Spark, started and ended in order.

Each gets a session of its own, so that Ctrl-C reaches only the demo, which then ends the others.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import click
import trio

from sbus.demo.clients import Report, decode_report
from sbus.errors import SbusError

START_SECONDS_MAX = 20.0
END_SECONDS_MAX = 60.0
"""A recorder seals what it has recorded, which takes some seconds on a busy machine."""
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives for some seconds only, which optimized code does not repay."""


class DemoFailed(SbusError):
    """A process of the demo did not do its part; the text says which one and how."""


@contextlib.asynccontextmanager
async def running_bus(address: str, workers: int) -> AsyncIterator[None]:
    """A bus at `address` for the length of the block; DemoFailed when it fails at either end.

    `-c`: should the demo be killed, its clients end, and then so does the bus.
    """
    module = ["sbus.cli.sbusd", "-f", "-c", "-a", address, "--workers", str(workers)]
    module += ["--run-as", str(os.geteuid())]
    async with running("the bus", module) as process:
        assert process.stdout is not None
        with trio.move_on_after(START_SECONDS_MAX):
            async for _ in process.stdout:
                pass  # It closes its output when it serves.
        if not await trio.Path(address).is_socket():
            raise DemoFailed("the bus did not start")
        yield


@contextlib.asynccontextmanager
async def recording(address: str, directory: Path, interpreter: str) -> AsyncIterator[None]:
    """Record in `directory` what crosses the bus during the block; DemoFailed. The interpreter has
    the packages that recording needs."""
    module = ["sbus.cli.sbusctl", "-a", address, "record", "--probe", "--snapshot-seconds", "0.5"]
    notices = f"{address}.notices"
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        await notified.bind(notices)
        environment = {**os.environ, "NOTIFY_SOCKET": notices}
        words = [*module, str(directory)]
        async with running("the recorder", words, environment, interpreter):
            with trio.move_on_after(START_SECONDS_MAX) as scope:
                await notified.recv(1024)  # Its first datagram says that it records.
            if scope.cancelled_caught:
                raise DemoFailed(f"nothing was recorded within {START_SECONDS_MAX:.0f} s")
            yield


@contextlib.asynccontextmanager
async def running(
    name: str,
    module: Sequence[str],
    environment: Mapping[str, str] | None = None,
    interpreter: str = sys.executable,
) -> AsyncIterator[trio.Process]:
    """A process that is asked to end after the block; DemoFailed unless it ends with status 0."""
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(python(module, environment, interpreter))
        yield process
        nursery.cancel_scope.cancel()
    if process.returncode != 0:
        raise DemoFailed(f"{name} ended with status {process.returncode}")


async def run_client(
    address: str, name: str, arguments: Sequence[str], hear: Callable[[Report], None]
) -> None:
    """Run a client to its end and hear its reports; DemoFailed when it does not end well."""
    module = ["sbus.demo.clients", "--address", address, "--name", name, *arguments]
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(python(module))
        assert process.stdout is not None
        line = b""
        async for chunk in process.stdout:
            *whole, line = (line + chunk).split(b"\n")
            for report in whole:
                hear(decode_report(report))
    if process.returncode != 0:
        raise DemoFailed(f"{' '.join(module)} ended with status {process.returncode}")


def python(
    module: Sequence[str],
    environment: Mapping[str, str] | None = None,
    interpreter: str = sys.executable,
) -> Callable[..., Awaitable[object]]:
    """A task that runs `python -m MODULE`; cancelled, it asks it to end, and waits for that."""
    return partial(
        trio.run_process,
        [interpreter, "-P", "-m", *module],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
        start_new_session=True,
        env=environment,
        deliver_cancel=end,
    )


async def end(process: trio.Process) -> None:
    """Ask a process to end; kill it if it does not."""
    process.terminate()
    with trio.move_on_after(END_SECONDS_MAX):
        await process.wait()
    process.kill()


@contextlib.asynccontextmanager
async def installing(checkout: Path) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Set the checkout's environment up during the block, in which the call waits for the end of
    that and says for how long; DemoFailed."""
    click.echo("Meanwhile Spark is being installed, once, for a page about all this.")
    finished = trio.Event()
    began_at = trio.current_time()

    async def is_installed() -> None:
        click.echo()
        while not finished.is_set():
            seconds = trio.current_time() - began_at
            if sys.stdout.isatty():
                click.echo(f"\rSpark is being installed, {seconds:.0f} s ", nl=False)
            with trio.move_on_after(1):
                await finished.wait()
        click.echo(f"\rSpark is installed, after {trio.current_time() - began_at:.0f} s.")

    async def install() -> None:
        done = await trio.run_process(
            [checkout / "deploy/setup-venv"],
            stdin=subprocess.DEVNULL,
            capture_stderr=True,
            check=False,
            start_new_session=True,
            deliver_cancel=end_group,
        )
        if done.returncode != 0:
            raise DemoFailed(f"Spark: {done.stderr.decode(errors='replace').strip()}")
        finished.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(install)
        yield is_installed


async def end_group(process: trio.Process) -> None:
    """As `end`, for a process with children of its own, in a session of its own."""
    os.killpg(process.pid, signal.SIGTERM)
    await end(process)


async def make_report(recording: Path, page: Path, interpreter: str) -> None:
    """Have Spark write a page about the recording, and say where it is; DemoFailed."""
    click.echo()
    click.echo("Spark reads what was recorded of all this, and makes a page of it ...")
    module = ["sbus.pipeline", "report", "--title", "sbus demo", "--out", str(page)]
    module += ["--depth", "3", "--window", "500ms"]
    done = await trio.run_process(
        [interpreter, "-P", "-m", *module, str(recording)],
        stdin=subprocess.DEVNULL,
        capture_stderr=True,
        check=False,
        start_new_session=True,
        env={**os.environ, "JDK_JAVA_OPTIONS": QUICK_JAVA},
    )
    if done.returncode != 0:
        raise DemoFailed(f"there is no report: {done.stderr.decode(errors='replace').strip()}")
    click.echo(f"Look at it: {page}")
    click.echo("Ask further:")
    click.echo(f"  {interpreter} -m sbus.pipeline hot-keys {recording}")
