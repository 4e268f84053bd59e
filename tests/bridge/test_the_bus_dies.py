"""The local bus is killed and started again: its bridge goes on, and what is missing is told."""

import json
import os
import signal
from contextlib import ExitStack, suppress
from pathlib import Path

from sbus.bench.proc import process_tree
from sbus.bridge.durable_import import Sent
from sbus.unix.state_file import StateFile
from tests.bridge.exporting_pair import exporting_pair
from tests.support.bridges import needs_nats, send, wait_until

pytestmark = needs_nats


def test_of_the_importer_loses_nothing_that_is_durable(tmp_path: Path) -> None:
    with exporting_pair(tmp_path) as scene:
        with scene.subscribed() as bus:
            scene.publish(1, 100)
            got = [bus.receive(timeout_seconds=20).payload for _ in range(100)]
            assert got == [b"%d" % number for number in range(1, 101)]
        scene.kill_bus("b")
        scene.publish(101, 200)
        scene.start_bus("b")
        with scene.subscribed() as bus:
            scene.publish(201, 201)
            last = b""
            while last != b"201":
                last = bus.receive(timeout_seconds=20).payload
        assert scene.bridges["b"].status()["origins"][0]["counts"]["missing"] == 0


def test_of_the_exporter_is_a_gap_and_clients_with_the_number_of_its_bridge_are_exported(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        scene = stack.enter_context(exporting_pair(tmp_path, durable=""))
        bridge = scene.bridges["a"]
        bridge.process.send_signal(signal.SIGSTOP)
        scene.kill_bus("a")
        scene.start_bus("a")
        clients = [stack.enter_context(scene.buses["a"].connect()) for _ in range(10)]
        for client in clients:
            send(client)
        bridge.process.send_signal(signal.SIGCONT)
        with scene.subscribed() as bus:
            gap = None
            while gap is None or gap.key != b"bridge/lost/all":  # the bridge has connected again
                send(clients[0], b"MSG all/ready\0")
                with suppress(TimeoutError):
                    gap = bus.receive(timeout_seconds=0.2)
            assert json.loads(gap.payload)["count"] is None
            for client in clients:
                send(client, b"MSG all/a\0")
            send(clients[0], b"MSG all/end\0")
            keys: list[bytes] = []
            while keys[-1:] != [b"all/end"]:
                keys.append(bus.receive(timeout_seconds=20).key)
        assert keys.count(b"all/a") == len(clients)


def test_of_the_importer_loses_nothing_of_an_origin_that_is_new(tmp_path: Path) -> None:
    with exporting_pair(tmp_path) as scene:
        for pid in process_tree(scene.buses["b"].process.pid):
            os.kill(pid, signal.SIGSTOP)
        scene.publish(1, 100)
        path = tmp_path / "b" / "all.sent"
        wait_until(lambda: StateFile(path, Sent()).state.marks)
        scene.bridges["b"].process.send_signal(signal.SIGSTOP)
        scene.kill_bus("b")
        scene.start_bus("b")
        with scene.subscribed() as bus:
            scene.bridges["b"].process.send_signal(signal.SIGCONT)
            got = [bus.receive(timeout_seconds=20).payload for _ in range(100)]
        assert got == [b"%d" % number for number in range(1, 101)]
