"""Four buses in a full mesh over three clustered servers, two of them with a second link, while
servers are killed and stopped, links are cut and, if that is asked for, bridges and buses killed.

    python -m tests.bridge.campaign --seconds 60 --seed 1 [--namespaces] [--durable [--kills]]

Publishers on each bus send numbers all the time. At the end, for each origin and each subscriber:
what was received and what was admitted to be lost is what was sent, in order, none twice. With
`--durable` the streams have three replicas, and nothing may be lost, but for what a killed bus says
that it has lost itself.
"""

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click

import sbus
from sbus.errors import BusError
from tests.support.accounts import Account, LossyAccount
from tests.support.bridges import BridgeOfBus, NatsServer, free_port, service_of_bridge
from tests.support.bus import SBUSD
from tests.support.kept_service import KeptService
from tests.support.network import network

NAMES = "abcd"
SERVERS = "abc"
TWICE_LINKED = "cd"
CONFIG = """
[bridge]
address = "{address}"
origin = "{name}"
state = "."
[channels.all]
patterns = ["all/"]
{durable}
[links.mesh]
servers = [{urls}]
export = ["all"]
import = ["all"]
"""
SECOND = """
[links.second]
servers = ["{url}"]
prefix = "second"
export = ["all"]
import = ["all"]
"""
DURABLE = "[channels.all.durable]\nreplicas = 3\n"
PUBLISH_SECONDS = 0.004
SETTLE_SECONDS = 3.0
"""After this time the service manager has the connections of all clients."""


class Publisher(threading.Thread):
    """Sends numbers to one bus until it is told to end."""

    def __init__(self, name: str, address: str, *, with_receipts: bool) -> None:
        super().__init__()
        self.name, self.sent, self.unknown, self.has_ended = name, 0, 0, False
        self._address = address
        self._with_receipts = with_receipts

    def run(self) -> None:
        with sbus.blocking.connect(self._address) as bus:
            while not self.has_ended:
                self.sent += 1
                key, payload = f"all/{self.name}", str(self.sent)
                if not self._with_receipts:
                    bus.publish(key, payload)
                else:
                    try:
                        bus.publish_with_receipt(key, payload)
                    except BusError:
                        self.unknown += 1
                time.sleep(PUBLISH_SECONDS)
            bus.sync()


class Scene:
    """All hosts."""

    def __init__(
        self, directory: Path, stack: ExitStack, *, namespaces: bool, durable: bool
    ) -> None:
        self.network = stack.enter_context(network(NAMES)) if namespaces else None
        self.addresses: dict[str, str] = {}
        self.servers = self._cluster(directory, stack)
        self.buses: dict[str, KeptService] = {}
        self.bridges: dict[str, KeptService] = {}
        for name in NAMES:
            place = directory / name
            place.mkdir()
            address = self.addresses[name] = str(place / "bus.socket")
            options = ("-f", "-r", "-a", address, "--workers", "2", "--placement", "spread")
            bus = KeptService(place / "bus", (*SBUSD, *options), self._prefix(name))
            stack.callback(bus.end)
            bus.start()
            self.buses[name] = bus
        for name, address in self.addresses.items():
            urls = ", ".join(f'"{server.url}"' for server in self.servers)
            text = CONFIG.format(
                name=name, address=address, urls=urls, durable=DURABLE if durable else ""
            )
            if name in TWICE_LINKED and not durable:
                text += SECOND.format(url=self.servers[1].url)
            service = service_of_bridge(address, directory / name, text, self._prefix(name))
            self.bridges[name] = stack.enter_context(service)
        for name in NAMES:
            told = BridgeOfBus(address=self.addresses[name])
            told.wait_reading()
            told.wait_peers(0 if durable else len(NAMES) - 1)
            if durable:
                told.wait_importing()

    def _prefix(self, name: str) -> Sequence[str]:
        return self.network.command(name) if self.network else ()

    def _cluster(self, directory: Path, stack: ExitStack) -> list[NatsServer]:
        """Three servers, each with routes to the others."""
        hosts = [self.network.address(it) if self.network else "127.0.0.1" for it in SERVERS]
        places = [f"{host}:{free_port()}" for host in hosts]
        routes = ",".join(f"nats://{place}" for place in places)
        servers = []
        for name, host, place in zip(SERVERS, hosts, places, strict=True):
            config = directory / f"{name}.conf"
            config.write_text(
                f"server_name: {name}\n"
                f'jetstream {{ store_dir: "{directory}/{name}-store" }}\n'
                f"cluster {{ name: mesh, listen: {place}, routes: [{routes}] }}\n"
            )
            options = ("-c", str(config))
            servers.append(NatsServer(directory, *options, host=host, prefix=self._prefix(name)))
            stack.callback(servers[-1].kill)
        for server in servers:
            server.start()
        return servers


class Disturber:
    """Disturbs a scene, with one thing at a time."""

    def __init__(self, scene: Scene, seed: int, *, kills: bool) -> None:
        self.counts: dict[str, int] = {}
        self._dice = random.Random(seed)
        self._scene = scene
        self._kinds: list[Callable[[], None]] = [self.kill_server, self.stop_server]
        if scene.network:
            self._kinds.append(self.cut_link)
        if kills:
            self._kinds += 2 * [self.kill_bridge, self.kill_bus]

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self._dice.uniform(0.2, 2.0))
            kind = self._dice.choice(self._kinds)
            self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
            kind()

    def _wait(self, longest: float) -> None:
        time.sleep(self._dice.uniform(0.1, longest))

    def kill_server(self) -> None:
        server = self._dice.choice(self._scene.servers)
        server.kill()
        self._wait(2.0)
        server.start()

    def stop_server(self) -> None:
        server = self._dice.choice(self._scene.servers)
        server.signal(signal.SIGSTOP)
        self._wait(3.0)
        server.signal(signal.SIGCONT)

    def cut_link(self) -> None:
        assert self._scene.network is not None
        name = self._dice.choice(NAMES)
        self._scene.network.cut(name)
        self._wait(6.0)
        self._scene.network.mend(name)

    def kill_bridge(self) -> None:
        self._restart(self._dice.choice(list(self._scene.bridges.values())))

    def kill_bus(self) -> None:
        self._restart(self._dice.choice(list(self._scene.buses.values())))

    def _restart(self, service: KeptService) -> None:
        service.kill()
        self._wait(0.5)
        service.start()


def run(
    directory: Path,
    seconds: float,
    seed: int,
    *,
    durable: bool = False,
    namespaces: bool = False,
    kills: bool = False,
) -> list[Account]:
    """The account of each bus."""
    with ExitStack() as stack:
        scene = Scene(directory, stack, namespaces=namespaces, durable=durable)
        kind = LossyAccount if kills else Account
        accounts = [kind(address) for address in scene.addresses.values()]
        publishers = [
            Publisher(name, address, with_receipts=kills)
            for name, address in scene.addresses.items()
        ]
        readers = [threading.Thread(target=account.run) for account in accounts]
        for thread in (*publishers, *readers):
            thread.start()
        disturber = Disturber(scene, seed, kills=kills)
        try:
            time.sleep(SETTLE_SECONDS if kills else 0)
            disturber.run(seconds)
        finally:
            for publisher in publishers:
                publisher.has_ended = True
                publisher.join()
            sent = {publisher.name: publisher.sent for publisher in publishers}
            for account in accounts:
                account.expect(sent)
            for account, reader in zip(accounts, readers, strict=True):
                reader.join()
                account.bus.close()
        unknown = {publisher.name: publisher.unknown for publisher in publishers}
        click.echo(f"seed {seed}, {disturber.counts}, sent {sent}, perhaps not sent {unknown}")
        for account in accounts:
            account.check(sent, unknown)
        return accounts


@click.command()
@click.option("--seconds", type=float, default=60.0)
@click.option("--seed", type=int, default=1)
@click.option("--durable", is_flag=True)
@click.option("--namespaces", is_flag=True)
@click.option("--kills", is_flag=True)
def main(seconds: float, seed: int, durable: bool, namespaces: bool, kills: bool) -> None:
    with TemporaryDirectory() as directory:
        accounts = run(
            Path(directory), seconds, seed, durable=durable, namespaces=namespaces, kills=kills
        )
        for name, account in zip(NAMES, accounts, strict=True):
            click.echo(f"{name}: {account}")
            assert not durable or not any(account.admitted.values()) or kills


if __name__ == "__main__":
    main()
