"""What servers leave out of a stream is read again."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from sbus.bridge.configuration import parse_configuration
from sbus.bridge.durable import ACKED, StreamReader
from sbus.bridge.envelope import HEADER
from sbus.bridge.ledger import Gap
from sbus.bridge.status import DurableStatus

CONFIG = """
[bridge]
state = "{state}"
[channels.all]
patterns = ["all/"]
[channels.all.durable]
[links.office]
servers = ["nats://x"]
import = ["all"]
"""


class Stopped(Exception):
    pass


class Reader(StreamReader):
    """Notes the numbers of what it gets."""

    def __init__(self, directory: Path) -> None:
        plan = parse_configuration(CONFIG.format(state=directory).encode(), "bus")
        super().__init__(DurableStatus("all"), "sbus", plan, lambda key, text: None)
        self.got: list[int] = []
        self.progress.next_in_stream = 1

    async def deliver(self, batch: list[Any]) -> None:
        self.got += [msg.metadata.sequence.stream for msg in batch]
        self.progress.next_in_stream = self.got[-1] + 1


class Server:
    """Delivers these numbers to its first consumers, and then all from where one begins."""

    def __init__(self, *deliveries: list[int], last: int) -> None:
        self._deliveries = list(deliveries)
        self._last = last

    def jetstream(self, timeout: float) -> "Server":
        return self

    async def stream_info(self, name: str) -> Any:
        return SimpleNamespace(state=SimpleNamespace(last_seq=self._last))

    async def pull_subscribe(self, subject: str, stream: str, config: Any) -> "Server":
        self._begin = config.opt_start_seq
        return self

    async def fetch(self, count: int, **limits: float) -> list[Any]:
        if self._begin > self._last:
            raise Stopped
        numbers = range(self._begin, self._last + 1)
        found = self._deliveries.pop(0) if self._deliveries else list(numbers)
        self._begin = found[-1] + 1
        return [message(number) for number in found]


def message(number: int) -> Any:
    async def ack() -> None:
        pass

    return SimpleNamespace(
        metadata=SimpleNamespace(sequence=SimpleNamespace(stream=number)), ack=ack
    )


def read(reader: Reader, server: Server) -> None:
    for _ in range(10):
        try:
            asyncio.run(reader.run(server))  # type: ignore[arg-type]
        except nats.errors.Error:
            continue
        except Stopped:
            return
    pytest.fail("it does not come to an end")


def test_what_was_left_out_once_comes_in_its_place(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    read(reader, Server([1, 2, 5], [3, 4, 5, 6, 9], last=9))
    assert reader.got == list(range(1, 10))


def test_what_is_always_left_out_was_removed(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    read(reader, Server([1, 2, 5], *[[5, 6]] * 9, last=6))
    assert reader.got == [1, 2, 5, 6]


def test_what_is_missing_is_looked_for_once_before_it_is_a_gap(tmp_path: Path) -> None:
    def sent(number: int, acked: int) -> Any:
        found = message(5_000 + number)
        found.subject, found.data = "sbus.d.all.a.all.x", b""
        found.headers = {HEADER: f"1 e {number} a h 7 p", ACKED: str(acked)}
        return found

    async def feed(reader: Reader) -> None:
        reader.feed(sent(1, 0))
        with pytest.raises(nats.errors.Error, match="read again"):
            reader.feed(sent(4, 3))
        assert 1 < reader.progress.next_in_stream < 1_000
        assert reader.feed(sent(4, 3))[1][0] == Gap("e", 2, 2)

    asyncio.run(feed(Reader(tmp_path)))
