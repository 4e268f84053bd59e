"""A pytest plugin: the fixture `sbus_address` is the address of a bus that a test has to itself.

pytest finds it where sbus is installed. The bus runs in processes of its own until the test ends;
`start_bus` does the same without pytest.
"""

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 15.0


@contextmanager
def start_bus(
    directory: Path, *options: str, timeout_seconds: float = START_SECONDS_MAX
) -> Iterator[str]:
    """Run a bus with these options of `sbusd` during the block; yields its address, a socket in
    `directory`. Raises RuntimeError with what the bus has printed when it does not start, also when
    it is not ready in this time.
    """
    address = str(directory / "bus")
    command = (*_sbusd(), "-f", "-a", address, "--workers", "1")
    keep_user = ("--run-as", str(os.geteuid()))
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [*command, *keep_user, *options], stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            assert process.stdout is not None
            # It is closed, unused, when the bus is ready or has ended.
            is_ready = bool(select.select([process.stdout], [], [], timeout_seconds)[0])
            if not (is_ready and os.path.exists(address)):
                if is_ready:
                    process.wait()
                errors.seek(0)
                late = "" if is_ready else f"the bus was not ready within {timeout_seconds} s\n"
                raise RuntimeError(late + errors.read().decode(errors="replace"))
            yield address
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _sbusd() -> tuple[str, ...]:
    """The daemon beside this library; the host's own where the library was installed alone."""
    has_daemon = find_spec("sbus.cli") is not None
    return (sys.executable, "-m", "sbus.cli.sbusd") if has_daemon else ("sbusd",)


@pytest.fixture
def sbus_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bus for this test, which `$SBUS_ADDRESS` names, too."""
    # A socket's path has at most 107 bytes, which `tmp_path` may exceed.
    with (
        tempfile.TemporaryDirectory(prefix="sbus-") as directory,
        start_bus(Path(directory)) as address,
    ):
        monkeypatch.setenv("SBUS_ADDRESS", address)
        yield address
