"""Real NATS servers and real bridges, for the length of a `with` block."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sbus
from sbus.cli.sbusctl.bridge_request import request_status
from sbus.client.blocking import Connection
from tests.support.bus import SBUSCTL, Bus, sbusd_environment
from tests.support.forked_sbusd import ForkedSbusd
from tests.support.kept_service import KeptService
from tests.support.needs import SYSTEM_PATH, needs_tool
from tests.support.raw_client import RawClient

SERVER = shutil.which("nats-server", path=SYSTEM_PATH)
needs_nats = needs_tool("nats-server", "nats-server")
START_SECONDS_MAX = 60.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_until(is_true: Callable[[], object], seconds: float = START_SECONDS_MAX) -> None:
    """Return when this is so; fail if it takes longer."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.01)


class NatsServer:
    """A server that can be killed and started again at the same port."""

    def __init__(
        self, directory: Path, *options: str, host: str = "127.0.0.1", prefix: Sequence[str] = ()
    ) -> None:
        """`prefix` is a command that executes others on this host."""
        self.port = free_port()
        self.url = f"nats://{host}:{self.port}"
        self._host = host
        self._prefix = prefix
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert SERVER is not None
        with (self._directory / f"nats-{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._prefix,
                    *(SERVER, "-a", self._host, "-p", str(self.port), *self._options),
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(self._accepts)

    def _accepts(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex((self._host, self.port)) == 0

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def nats_server(directory: Path, *options: str) -> Iterator[NatsServer]:
    server = NatsServer(directory, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()


class BridgeOfBus:
    """The bridge of a bus, by what it tells there."""

    def __init__(self, *, address: str) -> None:
        self._address = address

    def check_running(self) -> None:
        """Fail if it is known to have ended."""

    def status(self) -> dict[str, Any]:
        """What the bridge tells of itself, as soon as it does."""
        answers: list[dict[str, Any]] = []
        with sbus.blocking.connect(self._address) as bus:
            wait_until(lambda: self._ask(bus, answers))
        return answers[0]

    def _ask(self, bus: Connection[sbus.Message], answers: list[dict[str, Any]]) -> bool:
        try:
            answers.append(json.loads(request_status(bus)))
        except sbus.NobodyListens:
            self.check_running()
            return False
        return True

    def wait_importers(self, *channels: str, link: int = 0) -> None:
        """Return when somebody imports these channels of a link, and the bus is read."""
        wait_until(lambda: set(channels) <= set(self.status()["links"][link]["wanted"]))
        wait_until(
            lambda: all(
                channel["is_reading"]
                for channel in self.status()["channels"]
                if channel["name"] in channels
            )
        )

    def wait_peers(self, count: int) -> None:
        """Return when so many others import, and are imported from."""
        wait_until(lambda: len(self.status()["links"][0]["peers"]) >= count)
        wait_until(lambda: len(self.status()["origins"]) >= count)

    def wait_uplinked(self) -> None:
        """Return when it reads its own bus and the one above it."""
        self.wait_reading()
        wait_until(lambda: self.status()["links"][0]["is_reading"])

    def wait_reading(self) -> None:
        """Return when it reads all channels of its bus."""
        wait_until(lambda: all(it["is_reading"] for it in self.status()["channels"]))

    def wait_importing(self) -> None:
        """Return when it imports all durable channels."""
        wait_until(lambda: all(it["is_importing"] for it in self.status()["durable"]))


class RunningBridge(BridgeOfBus):
    """A bridge of a bus."""

    def __init__(self, bus: Bus, config: Path, environment: dict[str, str]) -> None:
        super().__init__(address=bus.address)
        self.bus = bus
        self.errors = config.with_suffix(".stderr")
        with self.errors.open("ab") as errors:
            words = ("-a", bus.address, "bridge", "--config", str(config))
            self.process = ForkedSbusd(
                words,
                errors,
                sbusd_environment() | environment,
                (),
                SBUSCTL[1:],
                "sbusctl_template",
            )
        self.process.stdout.close()

    def stderr_text(self) -> str:
        return self.errors.read_text()

    def check_running(self) -> None:
        assert self.process.poll() is None, self.stderr_text()

    def wait_up(self) -> None:
        """Return when its link is connected."""
        wait_until(lambda: " is up" in self.stderr_text())

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(START_SECONDS_MAX) == 0, self.stderr_text()


@contextmanager
def running_bridge(
    bus: Bus, directory: Path, config: str, **environment: str
) -> Iterator[RunningBridge]:
    """A bridge with this configuration."""
    path = directory / f"{os.path.basename(os.path.dirname(bus.address))}-bridge.toml"
    path.write_text(config)
    bridge = RunningBridge(bus, path, environment)
    try:
        yield bridge
        bridge.stop()
    finally:
        bridge.process.kill()
        bridge.process.wait()
        assert "Traceback" not in bridge.stderr_text(), bridge.stderr_text()


@contextmanager
def service_of_bridge(
    address: str, directory: Path, config: str, prefix: Sequence[str] = ()
) -> Iterator[KeptService]:
    """A bridge that can be killed and started again with the connections that it has stored."""
    path = directory / "bridge.toml"
    path.write_text(config)
    command = [*SBUSCTL, "-a", address, "bridge", "--config", str(path)]
    service = KeptService(directory / "bridge", command, prefix)
    try:
        service.start()
        yield service
    finally:
        service.end()


def send(client: RawClient, *packets: bytes) -> None:
    """Send these, and return when the bus has processed them."""
    for packet in (*packets, b"CMSG !/cred/whoami"):
        client.send(packet)
    assert client.receive().startswith(b"CMSG !/cred/whoami\0")
