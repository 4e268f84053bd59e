"""The demo's processes: the bus, and its clients, started and ended in order.

Each gets a session of its own, so that Ctrl-C reaches the demo alone, which then ends the
others. Knows the command lines, and not what is said.
"""

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

import trio

from sbus.demo.reports import Report, decode
from sbus.errors import SbusError

START_SECONDS_MAX = 20.0


class DemoFailed(SbusError):
    """A process of the demo did not do what it is there for; the text says which and what."""


@contextlib.asynccontextmanager
async def running_bus(address: str, workers: int) -> AsyncIterator[None]:
    """A bus at `address` for the length of the block; DemoFailed when it fails at either end.

    `-c`: should the demo be killed, its clients end, and then so does the bus.
    """
    module = ["sbus.cli.sbusd", "-f", "-c", "-a", address, "--workers", str(workers)]
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(partial(start, module))
        assert process.stdout is not None
        with trio.move_on_after(START_SECONDS_MAX):
            async for _ in process.stdout:
                pass  # It closes its output when it serves.
        if not await trio.Path(address).is_socket():
            raise DemoFailed("the bus did not start")
        yield
        nursery.cancel_scope.cancel()
    if process.returncode != 0:
        raise DemoFailed(f"the bus ended with status {process.returncode}")


async def run_client(module: Sequence[str], hear: Callable[[Report], None]) -> None:
    """Run a client to its end and hear its reports; DemoFailed when it does not end well."""
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(partial(start, module))
        assert process.stdout is not None
        line = b""
        async for chunk in process.stdout:
            *whole, line = (line + chunk).split(b"\n")
            for report in whole:
                hear(decode(report))
    if process.returncode != 0:
        raise DemoFailed(f"{' '.join(module)} ended with status {process.returncode}")


async def start(
    module: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    task_status: trio.TaskStatus[trio.Process],
) -> None:
    """Run `python -m MODULE`; cancelled, it is asked to end, and waited for."""
    await trio.run_process(
        [sys.executable, "-m", *module],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
        start_new_session=True,
        env=environment,
        task_status=task_status,
    )
