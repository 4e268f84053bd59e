"""An exporter has room only while its spool has, and tells its end when it has sent everything."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sbus.bridge import durable_export
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
    """Acknowledges at once, so many messages; the first one has the place 101."""

    max_payload = 1_048_576

    def __init__(self, count: int, **config: Any) -> None:
        self._count = count
        self._last = 100
        as_configured = {"max_age": 86_400.0, "max_bytes": 100_000, "num_replicas": 1}
        self._config = SimpleNamespace(**{**as_configured, **config})
        self.ends: asyncio.Queue[tuple[str, dict[str, str]]] = asyncio.Queue()
        self.is_done = asyncio.Event()

    def jetstream(self, timeout: float) -> "Server":
        return self

    async def stream_info(self, name: str) -> Any:
        return SimpleNamespace(state=SimpleNamespace(last_seq=self._last), config=self._config)

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        self.ends.put_nowait((subject, headers))

    async def publish_async(self, *args: Any, **options: Any) -> asyncio.Future[Any]:
        if not self._count:
            self.is_done.set()
            await asyncio.Event().wait()
        self._count -= 1
        self._last += 1
        acked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        acked.set_result(SimpleNamespace(seq=self._last))
        return acked


def exporter(
    directory: Path, report: Callable[[str, str], None] = lambda *_: None
) -> DurableExport:
    plan = parse_configuration(CONFIG.format(state=directory).encode(), "bus")
    exchange = Exchange(plan, lambda *_: None, lambda *_: None)
    return DurableExport(DurableStatus("all"), "sbus", exchange, report)


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


def end_of(export: DurableExport, server: Any) -> tuple[str, list[str], str]:
    """What is told when everything was sent: subject, epoch and number, and the place."""

    async def scene() -> tuple[str, dict[str, str]]:
        sending = asyncio.create_task(export.run(server))
        told: tuple[str, dict[str, str]] = await asyncio.wait_for(server.ends.get(), 5)
        sending.cancel()
        return told

    subject, headers = asyncio.run(scene())
    return subject, headers["Sbus"].split()[1:3], headers["Sbus-Sequence"]


def test_its_end_is_the_last_number_and_its_place_in_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_export, "END_SECONDS", 0.01)
    export = exporter(tmp_path)
    fill(export, 300, 1)
    expected = ("sbus.e.all.a", [export.spool.reached.epoch, "300"], "400")
    assert end_of(export, Server(300)) == expected
    assert end_of(exporter(tmp_path), Server(0)) == expected


def test_without_a_known_place_its_end_is_that_of_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_export, "END_SECONDS", 0.01)
    export = exporter(tmp_path)
    export.commit(1, set())
    epoch = export.spool.reached.epoch
    assert end_of(export, Server(0)) == ("sbus.e.all.a", [epoch, "0"], "100")


def test_no_end_is_told_while_something_waits(tmp_path: Path) -> None:
    export = exporter(tmp_path)
    server: Any = Server(0)
    fill(export, 1, 1)
    asyncio.run(export._tell_end(server, server))
    assert server.ends.empty()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, []),
        ({"max_age": 7_200.0}, ["hours_max = 2, not 24"]),
        ({"max_age": None}, ["hours_max = 0, not 24"]),
        (
            {"max_bytes": -1, "num_replicas": 3},
            ["bytes_max = -1, not 100000, replicas = 3, not 1"],
        ),
    ],
)
def test_a_stream_that_is_not_as_configured_is_reported(
    tmp_path: Path, config: dict[str, Any], expected: list[str]
) -> None:
    reported: list[str] = []

    async def scene() -> None:
        export = exporter(tmp_path, lambda key, text: reported.append(text))
        server: Any = Server(0, **config)
        fill(export, 1, 1)
        sending = asyncio.create_task(export.run(server))
        await asyncio.wait_for(server.is_done.wait(), 5)
        sending.cancel()

    asyncio.run(scene())
    begin, end = (
        "all (durable): stream sbus_all has ",
        ": change it with `nats stream edit sbus_all`",
    )
    assert reported == [f"{begin}{text}{end}" for text in expected]
