"""Durable channels: everything crosses once, also when processes are killed."""

import asyncio
import json
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client

import sbus
from sbus.bridge.bridge import Bridge
from sbus.bridge.configuration import parse_configuration
from sbus.bridge.nats_link import NatsLink
from sbus.bridge.progress import Progress
from sbus.client.blocking import Connection
from sbus.unix.notify import Notifier
from tests.bridge.exporting_pair import CONFIG, DURABLE, ExportingPair, exporting_pair
from tests.support.accounts import Account
from tests.support.bridges import nats_server, needs_nats, wait_until

pytestmark = needs_nats


def remove_all(scene: ExportingPair, count: int) -> None:
    """Remove everything from the stream when so many messages were sent."""
    wait_until(lambda: scene.bridges["a"].status()["durable"][0]["sent"] == count)
    asyncio.run(purge(scene.server.url))


async def purge(url: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().purge_stream("sbus_all")
    await client.close()


async def delete(url: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().delete_stream("sbus_all")
    await client.close()


def test_everything_comes_once_also_after_the_death_of_the_server(tmp_path: Path) -> None:
    with exporting_pair(tmp_path) as scene:
        account = Account(scene.buses["b"].address)
        scene.publish(1, 200)
        account.read_until({"a": 200})
        scene.server.kill()
        scene.publish(201, 400)
        scene.server.start()
        account.read_until({"a": 400})
        assert not any(account.admitted.values())
        account.read_nothing()
        account.bus.close()


def test_the_death_of_an_importing_bridge_costs_at_most_one_message_twice(tmp_path: Path) -> None:
    with exporting_pair(tmp_path) as scene, scene.subscribed() as bus:
        numbers: list[int] = []
        last = 0
        for round_ in range(2):
            scene.publish(last + 1, last + 1_000)
            last += 1_000
            stop_at = last - random.Random(round_).randrange(990)
            while not numbers or numbers[-1] < stop_at:
                numbers += read(bus)
            scene.kill("b")
            scene.start("b")
            while numbers[-1] < last:
                numbers += read(bus)
            assert sorted(set(numbers)) == list(range(1, last + 1))
            assert len(numbers) - len(set(numbers)) <= round_ + 1
        without_repeats = [n for at, n in enumerate(numbers) if at == 0 or numbers[at - 1] != n]
        assert without_repeats == list(range(1, last + 1))


def test_what_an_exporting_bridge_did_not_read_is_told_as_a_gap(tmp_path: Path) -> None:
    with exporting_pair(tmp_path) as scene, scene.subscribed() as bus:
        scene.server.signal(signal.SIGSTOP)
        scene.publish(1, 100)
        wait_until(lambda: scene.bridges["a"].status()["channels"][0]["exported"] == 100)
        scene.kill("a")
        scene.server.signal(signal.SIGCONT)
        scene.start("a")
        scene.bridges["a"].wait_reading()
        scene.publish(101, 101)
        got = [bus.receive(timeout_seconds=30) for _ in range(102)]
        assert [int(it.payload) for it in got[:100]] == list(range(1, 101))
        assert json.loads(got[100].payload)["count"] is None
        assert got[101].payload == b"101"


def test_what_was_removed_before_it_was_imported_is_told_although_nothing_comes_after_it(
    tmp_path: Path,
) -> None:
    with exporting_pair(tmp_path) as scene, scene.subscribed() as bus:
        scene.publish(1, 1)
        assert bus.receive(timeout_seconds=20).payload == b"1"
        wait_until(lambda: Progress(tmp_path / "b" / "all.progress").next_in_stream == 2)
        scene.kill("b")
        scene.publish(2, 100)
        remove_all(scene, 100)
        scene.start("b")
        gap = json.loads(bus.receive(timeout_seconds=30).payload)
        assert (gap["origin"], gap["first"], gap["count"]) == ("a", 2, 99)


def test_a_link_ends_although_the_nats_client_swallows_that(tmp_path: Path) -> None:
    """`asyncio.wait_for` of Python 3.11, which nats-py calls, returns a message that comes at the
    same time as the cancellation."""

    class Swallows:
        name = "all (durable)"
        has_begun = asyncio.Event()

        async def run(self, nc: Client) -> None:
            nothing = await nc.subscribe("nothing")
            self.has_begun.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await nothing.next_msg(timeout=None)

    async def scene(url: str) -> None:
        config = CONFIG.format(name="a", url=url, way="export", durable=DURABLE)
        plan = parse_configuration(config.encode(), "bus", str(tmp_path))
        bridge = Bridge(plan, lambda _: None, Notifier())
        (link,) = bridge.links
        assert isinstance(link, NatsLink)
        channel: Any = Swallows()
        link.durable[:] = [channel]
        running = asyncio.create_task(link.run())
        await channel.has_begun.wait()
        running.cancel()
        await asyncio.wait([running], timeout=60)
        assert running.cancelled()

    with nats_server(tmp_path) as server:
        asyncio.run(scene(server.url))


def test_a_stream_that_was_deleted_is_made_anew_and_read(tmp_path: Path) -> None:
    with exporting_pair(tmp_path) as scene, scene.subscribed() as bus:
        scene.publish(1, 5)
        got = [bus.receive(timeout_seconds=20).payload for _ in range(5)]
        asyncio.run(delete(scene.server.url))
        scene.publish(6, 7)
        got += [bus.receive(timeout_seconds=60).payload for _ in range(2)]
        assert got == [b"%d" % number for number in range(1, 8)]


def test_what_no_server_takes_is_a_gap_and_holds_up_nothing(tmp_path: Path) -> None:
    with exporting_pair(tmp_path, max_payload=10_000) as scene, scene.subscribed() as bus:
        scene.publish(1, 1)
        assert bus.receive(timeout_seconds=20).payload == b"1"
        with sbus.blocking.connect(scene.buses["a"].address) as client:
            client.publish(b"all/" + b"\xff" * 3_000, "its subject is too long")
            client.publish("all/a", "too long" * 2_000)
            client.publish("all/a", "4")
            client.sync()
        gap = json.loads(bus.receive(timeout_seconds=20).payload)
        assert (gap["first"], gap["count"]) == (2, 2)
        assert bus.receive(timeout_seconds=20).payload == b"4"
        assert scene.bridges["a"].status()["durable"][0]["given_up"] == {"all/": 2}


def read(bus: Connection[sbus.Message]) -> list[int]:
    messages = bus.receive_many(timeout_seconds=30)
    assert all(message.key == b"all/a" for message in messages), messages
    return [int(message.payload) for message in messages]
