"""A subscriber in a process of its own, which reads nothing and ends by a signal."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.raw_client import RawClient


@contextmanager
def reader_process(address: str, *packets: bytes) -> Iterator[int]:
    """Connect, send `packets`, and read no more; yields the id of the process that does it."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with RawClient(address) as client:
                for packet in packets:
                    client.send(packet)
                client.whoami()
                os.write(tell, b"+")
                signal.pause()
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(ready, 1) == b"+", "the reader could not connect"
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
