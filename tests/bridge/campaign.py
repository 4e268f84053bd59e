"""Three buses in a full mesh over three clustered servers that are killed and stopped at random.

    python -m tests.bridge.campaign --seconds 60 --seed 1 [--durable]

Publishers on each bus send numbers all the time. At the end, for each origin and each subscriber:
what was received and what was admitted to be lost is what was sent, in order, none twice. With
`--durable` the streams have three replicas, and nothing may be lost.
"""

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

import sbus
from tests.support.accounts import Account
from tests.support.bridges import NatsServer, RunningBridge, free_port, running_bridge
from tests.support.bus import Bus, running_bus

NAMES = "abc"
CONFIG = """
[bridge]
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
DURABLE = "[channels.all.durable]\nreplicas = 3\n"
PUBLISH_SECONDS = 0.002


@contextmanager
def cluster(directory: Path) -> Iterator[list[NatsServer]]:
    """Three servers, each with routes to the others."""
    ports = [free_port() for _ in NAMES]
    routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
    servers = []
    for name, port in zip(NAMES, ports, strict=True):
        config = directory / f"{name}.conf"
        config.write_text(
            f"server_name: {name}\n"
            f'jetstream {{ store_dir: "{directory}/{name}-store" }}\n'
            f"cluster {{ name: mesh, listen: 127.0.0.1:{port}, routes: [{routes}] }}\n"
        )
        servers.append(NatsServer(directory, "-c", str(config)))
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()


class Publisher(threading.Thread):
    """Sends numbers to one bus until it is told to end."""

    def __init__(self, name: str, bus: Bus) -> None:
        super().__init__()
        self.name, self.sent, self.has_ended = name, 0, False
        self._address = bus.address

    def run(self) -> None:
        with sbus.blocking.connect(self._address) as bus:
            while not self.has_ended:
                self.sent += 1
                bus.publish(f"all/{self.name}", str(self.sent))
                time.sleep(PUBLISH_SECONDS)
            bus.sync()


def disturb(servers: list[NatsServer], seed: int, seconds: float) -> int:
    """Kill and stop servers, one at a time; returns how often."""
    dice, end, count = random.Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        time.sleep(dice.uniform(0.5, 3.0))
        server = dice.choice(servers)
        if dice.random() < 0.5:
            server.kill()
            time.sleep(dice.uniform(0.1, 2.0))
            server.start()
        else:
            server.signal(signal.SIGSTOP)
            time.sleep(dice.uniform(0.1, 3.0))
            server.signal(signal.SIGCONT)
        count += 1
    return count


def run(directory: Path, seconds: float, seed: int, *, durable: bool) -> list[Account]:
    """The account of each bus."""
    with ExitStack() as stack:
        servers = stack.enter_context(cluster(directory))
        urls = ", ".join(f'"{server.url}"' for server in servers)
        buses: dict[str, Bus] = {}
        bridges: list[RunningBridge] = []
        for name in NAMES:
            (directory / name).mkdir()
            bus = buses[name] = stack.enter_context(running_bus(directory / name))
            text = CONFIG.format(name=name, urls=urls, durable=DURABLE if durable else "")
            bridges.append(stack.enter_context(running_bridge(bus, directory / name, text)))
        for bridge in bridges:
            bridge.wait_reading()
            bridge.wait_peers(0 if durable else len(NAMES) - 1)
            if durable:
                bridge.wait_importing()
        accounts = [Account(bus.address) for bus in buses.values()]
        publishers = [Publisher(name, bus) for name, bus in buses.items()]
        readers = [threading.Thread(target=account.run) for account in accounts]
        for thread in (*publishers, *readers):
            thread.start()
        try:
            click.echo(f"{disturb(servers, seed, seconds)} disturbances")
        finally:
            for publisher in publishers:
                publisher.has_ended = True
                publisher.join()
            sent = {publisher.name: publisher.sent for publisher in publishers}
            for account, reader in zip(accounts, readers, strict=True):
                account.expect(sent)
                reader.join()
                account.bus.close()
        for account in accounts:
            account.check(sent)
        return accounts


@click.command()
@click.option("--seconds", type=float, default=60.0)
@click.option("--seed", type=int, default=1)
@click.option("--durable", is_flag=True)
def main(seconds: float, seed: int, durable: bool) -> None:
    with TemporaryDirectory() as directory:
        for name, account in zip(
            NAMES, run(Path(directory), seconds, seed, durable=durable), strict=True
        ):
            received, admitted = dict(account.received), dict(account.admitted)
            click.echo(f"{name}: received {received}, admitted {admitted}")
            assert not durable or not any(admitted.values())


if __name__ == "__main__":
    main()
