"""The demo's data pipeline: a recorder beside the bus, and Spark, which makes a page of it.

Two more processes, run by their command lines. Knows neither recordings nor Spark.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import trio

from sbus.demo.processes import START_SECONDS_MAX, DemoFailed, start
from sbus.demo.screen import say

PROBES = b"sbus/probe/"
"""What the recorder publishes, to itself; it reaches whoever wants everything."""

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives some seconds only: code is not worth being compiled well."""


@contextlib.asynccontextmanager
async def recording(address: str, directory: Path) -> AsyncIterator[None]:
    """All that crosses the bus in the block is recorded in `directory`; DemoFailed."""
    module = ["sbus.cli.sbusctl", "-a", address, "record", "--probe", "--snapshot-seconds", "0.5"]
    notices = f"{address}.notices"
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        await notified.bind(notices)
        environment = {**os.environ, "NOTIFY_SOCKET": notices}
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                partial(start, [*module, str(directory)], environment)
            )
            with trio.move_on_after(START_SECONDS_MAX) as scope:
                await notified.recv(1024)  # Its first word is that it records.
            if scope.cancelled_caught:
                raise DemoFailed(f"nothing was recorded within {START_SECONDS_MAX:.0f} s")
            yield
            nursery.cancel_scope.cancel()
    if process.returncode != 0:
        raise DemoFailed(f"the recorder ended with status {process.returncode}")


async def make_report(recording: Path, page: Path) -> None:
    """Have Spark write a page about the recording, and say where; DemoFailed."""
    say()
    say("Spark reads what was recorded of all this, and makes a page of it ...")
    module = ["sbus.pipeline", "report", "--title", "sbus demo", "--out", str(page)]
    module += ["--depth", "3", "--window", "500ms"]
    environment = {**os.environ, "JDK_JAVA_OPTIONS": QUICK_JAVA}
    done = await trio.run_process(
        [sys.executable, "-m", *module, str(recording)],
        stdin=subprocess.DEVNULL,
        capture_stderr=True,
        check=False,
        start_new_session=True,
        env=environment,
    )
    if done.returncode != 0:
        raise DemoFailed(f"there is no report: {done.stderr.decode(errors='replace').strip()}")
    say(f"Look at it:  {page}")
    say(f"Ask further: {sys.executable} -m sbus.pipeline hot-keys {recording}")
