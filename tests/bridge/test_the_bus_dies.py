"""The local bus is killed and started again: its bridge goes on, and what is missing is told."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import sbus
from sbus.bench.proc import process_tree
from sbus.bridge.durable_import import Sent
from sbus.client.blocking import Connection
from sbus.unix.state_file import StateFile
from tests.support.accounts import PATTERNS
from tests.support.bridges import nats_server, needs_nats, running_bridge, send, wait_until
from tests.support.bus import Bus, kill_tree, running_bus

pytestmark = needs_nats

CONFIG = """
[bridge]
origin = "{name}"
state = "."
[channels.all]
patterns = ["all/"]
{durable}
[links.office]
servers = ["{url}"]
{way} = ["all"]
"""
DURABLE = "[channels.all.durable]"


class Scene:
    """Bus `a` exports to bus `b`."""

    def __init__(self, directory: Path, stack: ExitStack, durable: str) -> None:
        server = stack.enter_context(nats_server(directory, "-js", "-sd", str(directory / "js")))
        self._directory, self._stack = directory, stack
        self.buses: dict[str, Bus] = {}
        self.bridges = {}
        for name, way in (("b", "import"), ("a", "export")):
            (directory / name).mkdir()
            self.start(name)
            config = CONFIG.format(name=name, way=way, url=server.url, durable=durable)
            self.bridges[name] = stack.enter_context(
                running_bridge(self.buses[name], directory / name, config)
            )
        if durable:
            self.bridges["b"].wait_importing()
            self.bridges["a"].wait_reading()
        else:
            self.bridges["a"].wait_importers("all")

    def start(self, name: str) -> None:
        place = self._directory / name
        self.buses[name] = self._stack.enter_context(running_bus(place))

    def kill(self, name: str) -> None:
        kill_tree(self.buses[name].process)
        for path in self._directory.joinpath(name).glob("bus.socket*"):
            path.unlink()

    def publish(self, first: int, last: int) -> None:
        with sbus.blocking.connect(self.buses["a"].address) as bus:
            bus.publish_many("all/a", (str(number) for number in range(first, last + 1)))
            bus.sync()

    @contextmanager
    def subscribed(self) -> Iterator[Connection[sbus.Message]]:
        with sbus.blocking.connect(self.buses["b"].address) as bus:
            for pattern in PATTERNS:
                bus.subscribe(pattern)
            bus.sync()
            yield bus


def test_of_the_exporter_is_a_gap_of_unknown_size(tmp_path: Path) -> None:
    with ExitStack() as stack:
        scene = Scene(tmp_path, stack, "")
        with scene.subscribed() as bus:
            scene.publish(1, 1)
            assert bus.receive(timeout_seconds=20).payload == b"1"
            scene.kill("a")
            scene.start("a")
            # The bridge connects again when it finds that the bus is back.
            numbers = count(2)
            gap = None
            while gap is None:
                number = next(numbers)
                scene.publish(number, number)
                with suppress(TimeoutError):
                    gap = bus.receive(timeout_seconds=0.2)
            assert gap.key == b"bridge/lost/all"
            assert json.loads(gap.payload)["count"] is None
            assert int(bus.receive(timeout_seconds=20).payload) > 1


def test_of_the_importer_loses_nothing_that_is_durable(tmp_path: Path) -> None:
    with ExitStack() as stack:
        scene = Scene(tmp_path, stack, DURABLE)
        with scene.subscribed() as bus:
            scene.publish(1, 100)
            got = [bus.receive(timeout_seconds=20).payload for _ in range(100)]
            assert got == [b"%d" % number for number in range(1, 101)]
        scene.kill("b")
        scene.publish(101, 200)
        scene.start("b")
        with scene.subscribed() as bus:
            scene.publish(201, 201)
            last = b""
            while last != b"201":
                last = bus.receive(timeout_seconds=20).payload
        assert scene.bridges["b"].status()["origins"][0]["counts"]["missing"] == 0


def test_a_client_with_the_number_of_a_bridge_of_the_bus_before_is_exported(tmp_path: Path) -> None:
    with ExitStack() as stack:
        scene = Scene(tmp_path, stack, "")
        bridge = scene.bridges["a"]
        bridge.process.send_signal(signal.SIGSTOP)
        scene.kill("a")
        scene.start("a")
        clients = [stack.enter_context(scene.buses["a"].connect()) for _ in range(10)]
        for client in clients:
            send(client)
        bridge.process.send_signal(signal.SIGCONT)
        with scene.subscribed() as bus:
            key = b""
            while key != b"bridge/lost/all":  # the bridge has connected again
                send(clients[0], b"MSG all/ready\0")
                with suppress(TimeoutError):
                    key = bus.receive(timeout_seconds=0.2).key
            for client in clients:
                send(client, b"MSG all/a\0")
            send(clients[0], b"MSG all/end\0")
            keys: list[bytes] = []
            while keys[-1:] != [b"all/end"]:
                keys.append(bus.receive(timeout_seconds=20).key)
        assert keys.count(b"all/a") == len(clients)


def test_of_the_importer_loses_nothing_of_an_origin_that_is_new(tmp_path: Path) -> None:
    with ExitStack() as stack:
        scene = Scene(tmp_path, stack, DURABLE)
        for pid in process_tree(scene.buses["b"].process.pid):
            os.kill(pid, signal.SIGSTOP)
        scene.publish(1, 100)
        path = tmp_path / "b" / "all.sent"
        wait_until(lambda: StateFile(path, Sent()).state.marks)
        scene.bridges["b"].process.send_signal(signal.SIGSTOP)
        scene.kill("b")
        scene.start("b")
        with scene.subscribed() as bus:
            scene.bridges["b"].process.send_signal(signal.SIGCONT)
            got = [bus.receive(timeout_seconds=20).payload for _ in range(100)]
        assert got == [b"%d" % number for number in range(1, 101)]
