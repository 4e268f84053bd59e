"""An exporter has room only while its spool has."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sbus.bridge.configuration import parse_configuration
from sbus.bridge.durable_export import DurableExport
from sbus.bridge.exchange import Exchange
from sbus.bridge.status import DurableStatus
from sbus.protocol.packets import Message

CONFIG = """
[bridge]
origin = "a"
state = "{state}"
[channels.all]
patterns = ["all/"]
when_full = "block"
[channels.all.durable]
bytes_max = 100_000
[links.office]
servers = ["nats://x"]
export = ["all"]
"""


class Server:
    """Acknowledges at once, so many messages."""

    max_payload = 1_048_576

    def __init__(self, count: int) -> None:
        self._count = count
        self.is_done = asyncio.Event()

    def jetstream(self, timeout: float) -> "Server":
        return self

    async def stream_info(self, name: str) -> None:
        pass

    async def publish_async(self, *args: Any, **options: Any) -> asyncio.Future[None]:
        if not self._count:
            self.is_done.set()
            await asyncio.Event().wait()
        self._count -= 1
        acked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        acked.set_result(None)
        return acked


def exporter(directory: Path) -> DurableExport:
    plan = parse_configuration(CONFIG.format(state=directory).encode(), "bus")
    exchange = Exchange(plan, lambda *_: None, lambda *_: None)
    return DurableExport(DurableStatus("all"), "sbus", exchange, lambda *_: None)


def fill(export: DurableExport, count: int, size_bytes: int) -> None:
    sender = SimpleNamespace(client=1, uid=0, pid=1, program=b"x")
    for _ in range(count):
        export.export("all", Message(b"all/a", b"x" * size_bytes, sender))  # type: ignore[arg-type]
    export.commit(1, set())


def test_the_next_one_has_no_room_for_what_the_last_one_left(tmp_path: Path) -> None:
    fill(exporter(tmp_path), 6, 10_000)
    assert not exporter(tmp_path).room.is_set()


def test_what_is_acknowledged_makes_room_only_below_the_half(tmp_path: Path) -> None:
    async def scene() -> None:
        export = exporter(tmp_path)
        fill(export, 1_000, 20)
        fill(export, 3, 10_000)
        assert not export.status.given_up
        for count, has_room in ((256, False), (744, True)):
            server: Any = Server(count)
            sending = asyncio.create_task(export.run(server))
            await asyncio.wait_for(server.is_done.wait(), 5)
            sending.cancel()
            assert export.room.is_set() == (export.spool.waiting_bytes <= 50_000)
            assert export.room.is_set() == has_room

    asyncio.run(scene())
