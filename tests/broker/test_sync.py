"""`CMSG !/sync`: a barrier whose reply says which request it answers (docs/protocol.md)."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.bus import Bus, running_bus
from tests.support.processes import worker_pids


@pytest.mark.parametrize("token", [b"", b"7", bytes(range(64)), b"x" * 65, b"y" * 10_000])
def test_the_reply_has_the_token(bus: Bus, token: bytes) -> None:
    with bus.connect() as client:
        client.sub(b"a")
        client.pub(b"a", b"before")
        client.send(b"CMSG !/sync\0" + token)
        assert client.receive() == b"MSG a\0before"
        assert client.receive() == b"CMSG !/sync\0" + token[:64]


def test_a_successor_replies_with_the_token(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=1) as bus, bus.connect() as client:
        client.whoami()
        (worker,) = worker_pids(bus).values()
        os.kill(worker, signal.SIGSTOP)
        client.send(b"CMSG !/sync\0first")
        client.send(b"CMSG !/sync\0second")
        os.kill(worker, signal.SIGKILL)
        assert client.receive() == b"CMSG !/sync\0first"
        assert client.receive() == b"CMSG !/sync\0second"
