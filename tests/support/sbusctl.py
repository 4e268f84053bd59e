"""Programs of `sbusctl` that run while a test goes on."""

import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.bus import SBUSCTL, Bus, sbusd_environment
from tests.support.raw_client import RawClient

TIMEOUT_S = 60.0
RETRY_S = 0.05


@contextmanager
def started(
    bus: Bus, *words: str, stdout: int = subprocess.PIPE, before: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """`sbusctl WORDS`, with `before` in front of it."""
    process = subprocess.Popen(
        [*before, *SBUSCTL, "-a", bus.address, *words],
        env=sbusd_environment(),
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Exit status, and the rest of both outputs."""
    output, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, output or b"", errors


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line of output, which must come by itself."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
    assert readable, "no line came"
    return process.stdout.readline()


def publish_until_seen(client: RawClient, output: int, key: bytes, payload: bytes) -> None:
    """Publish again and again until something can be read: then the subscription holds."""
    for _ in range(int(TIMEOUT_S / RETRY_S)):
        client.pub(key, payload)
        if select.select([output], [], [], RETRY_S)[0]:
            return
    raise AssertionError("nothing was printed")
