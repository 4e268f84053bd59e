"""A file of metrics for node_exporter's textfile collector.

The file is always complete: it is written beside its place, under a name that the collector
ignores, and then moved. Its text is in Prometheus' own format, the one that this collector reads.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.exposition import generate_latest

from sbus.cli.metrics.collector import BusCollector, registry_of

MODE = 0o644
"""Of the file: node_exporter is another user."""


def write_textfile(path: str, collector: BusCollector, interval_seconds: float | None) -> None:
    """Write the file once, or every `interval_seconds` until SIGTERM. Raises OSError if it cannot
    be written."""
    registry = registry_of(collector)
    if interval_seconds is not None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        content = generate_latest(registry)
        with _signals_deferred():
            replace_file(path, content)
        if interval_seconds is None:
            return
        time.sleep(interval_seconds)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer the signals that end the process, so that no temporary file is left behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def replace_file(path: str, content: bytes) -> None:
    """Give `path` this content in one step, readable by everybody."""
    folder, name = os.path.split(path)
    number, beside = tempfile.mkstemp(prefix=f".{name}.", dir=folder or ".")
    try:
        with open(number, "wb") as file:
            file.write(content)
            os.fchmod(number, MODE)
        os.rename(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
