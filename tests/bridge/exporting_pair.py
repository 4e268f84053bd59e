"""Two buses over NATS: `a` exports a channel to `b`."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sbus
from sbus.client.blocking import Connection
from tests.support.accounts import PATTERNS
from tests.support.bridges import NatsServer, RunningBridge, nats_server, running_bridge
from tests.support.bus import Bus, kill_tree, running_bus

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
WAYS = {"a": "export", "b": "import"}


class ExportingPair:
    """Both buses run; bridges are started one by one, or with `begin`."""

    def __init__(
        self,
        directory: Path,
        stack: ExitStack,
        *,
        durable: str = DURABLE,
        max_payload: int = 1_048_576,
    ) -> None:
        config = directory / "server.conf"
        config.write_text(
            f'max_payload: {max_payload}, jetstream {{ store_dir: "{directory}/jetstream" }}'
        )
        self.server: NatsServer = stack.enter_context(nats_server(directory, "-c", str(config)))
        self.buses: dict[str, Bus] = {}
        self.bridges: dict[str, RunningBridge] = {}
        self._durable = durable
        self._directory = directory
        self._stack = stack
        for name in WAYS:
            self.place(name).mkdir()
            self.start_bus(name)

    def place(self, name: str) -> Path:
        return self._directory / name

    def config(self, name: str) -> str:
        return CONFIG.format(name=name, way=WAYS[name], url=self.server.url, durable=self._durable)

    def begin(self) -> None:
        """Start both bridges; what is published from now on crosses."""
        for name in "ba":
            self.start(name)
        if self._durable:
            self.bridges["b"].wait_importing()
            self.bridges["a"].wait_reading()
        else:
            self.bridges["a"].wait_importers("all")

    def start(self, name: str) -> None:
        self.bridges[name] = self._stack.enter_context(
            running_bridge(self.buses[name], self.place(name), self.config(name))
        )

    def kill(self, name: str) -> None:
        """The bridge."""
        self.bridges[name].process.kill()
        self.bridges[name].process.wait()

    def start_bus(self, name: str) -> None:
        self.buses[name] = self._stack.enter_context(running_bus(self.place(name)))

    def kill_bus(self, name: str) -> None:
        kill_tree(self.buses[name].process)
        for path in self.place(name).glob("bus.socket*"):
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


@contextmanager
def exporting_pair(
    directory: Path, *, begins: bool = True, durable: str = DURABLE, max_payload: int = 1_048_576
) -> Iterator[ExportingPair]:
    with ExitStack() as stack:
        pair = ExportingPair(directory, stack, durable=durable, max_payload=max_payload)
        if begins:
            pair.begin()
        yield pair
