"""What crossing a bridge costs: `python -m tests.bridge.measurements crossing|away|hosts`.

Programs of their own publish and subscribe, with the blocking client. The subscriber reports.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import nats

import sbus
from sbus.bench.proc import proportional_memory_bytes, run_time_ns
from tests.support.bridges import NatsServer, RunningBridge, nats_server, running_bridge
from tests.support.bus import Bus, running_bus, sbusd_environment

CONFIG = """
[bridge]
origin = "{name}"
[channels.all]
patterns = ["all/"]
[links.mesh]
servers = ["{url}"]
export = ["all"]
import = ["all"]
"""
PAYLOAD_BYTES = 100
RATE_PER_SECOND = 1_000
USER_MESSAGES_PER_SECOND = "10000000"
"""All programs are one user's, whose rate is not what is measured."""


class Host:
    """A bus with its bridge."""

    def __init__(self, name: str, bus: Bus, bridge: RunningBridge) -> None:
        self.name, self.bus, self.bridge = name, bus, bridge

    def cpu_ns(self) -> dict[str, int]:
        """CPU time so far, of the bridge and of all processes of the bus."""
        return {
            f"bridge {self.name}": run_time_ns(self.bridge.process.pid),
            f"bus {self.name}": sum(map(run_time_ns, self.bus.pids())),
        }


@contextmanager
def joined(count: int) -> Iterator[tuple[list[Host], NatsServer]]:
    """So many buses of one worker each, all joined by one server."""
    with TemporaryDirectory() as directory, ExitStack() as stack:
        server = stack.enter_context(nats_server(Path(directory)))
        hosts = []
        for name in "abcdef"[:count]:
            place = Path(directory) / name
            place.mkdir()
            limit = ("--limit", f"user_messages_per_second_max={USER_MESSAGES_PER_SECOND}")
            bus = stack.enter_context(running_bus(place, *limit, workers=1))
            text = CONFIG.format(name=name, url=server.url)
            bridge = stack.enter_context(running_bridge(bus, place, text))
            hosts.append(Host(name, bus, bridge))
        for host in hosts:
            host.bridge.wait_importers("all")
            host.bridge.wait_peers(count - 1)
        yield hosts, server


def publish(address: str, key: str, count: int, rate_per_second: float) -> None:
    """Publish the time, padded; without a rate, as fast as the bus takes it."""
    with sbus.blocking.connect(address) as bus:
        due = time.monotonic()
        if not rate_per_second:
            bus.publish_many(key, [repr(due).ljust(PAYLOAD_BYTES)] * count)
        for _ in range(count if rate_per_second else 0):
            due += 1 / rate_per_second
            time.sleep(max(0.0, due - time.monotonic()))
            bus.publish(key, repr(time.monotonic()).ljust(PAYLOAD_BYTES))
        bus.sync()


def subscribe(address: str, key: str, count: int) -> None:
    """Receive so many; prints how long each took, in microseconds, and all of them, in seconds."""
    latencies_us: list[float] = []
    began = 0.0
    with sbus.blocking.connect(address) as bus:
        bus.subscribe(key)
        bus.sync()
        print("subscribed", flush=True)
        while len(latencies_us) < count:
            for message in bus.receive_many(timeout_seconds=60):
                now = time.monotonic()
                began = began or float(message.payload)
                latencies_us.append((now - float(message.payload)) * 1e6)
    print(json.dumps({"latencies_us": latencies_us, "seconds": [now - began]}))


async def publish_plain(url: str, key: str, count: int, rate_per_second: float) -> None:
    client = await nats.connect(url)
    due = time.monotonic()
    for _ in range(count):
        due += 1 / rate_per_second
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await client.publish(key, repr(time.monotonic()).ljust(PAYLOAD_BYTES).encode())
    await client.flush()


async def subscribe_plain(url: str, key: str, count: int) -> None:
    client = await nats.connect(url)
    latencies_us: list[float] = []
    subscription = await client.subscribe(key)
    await client.flush()
    print("subscribed", flush=True)
    while len(latencies_us) < count:
        message = await subscription.next_msg(60)
        latencies_us.append((time.monotonic() - float(message.data)) * 1e6)
    print(json.dumps({"latencies_us": latencies_us}))


PROGRAMS: dict[str, Callable[..., None]] = {
    "publish": publish,
    "subscribe": subscribe,
    "publish-plain": lambda *words: asyncio.run(publish_plain(*words)),
    "subscribe-plain": lambda *words: asyncio.run(subscribe_plain(*words)),
}


def start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bridge.measurements", "program", *map(str, words)],
        env=sbusd_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


def run_pair(
    there: str, here: str, count: int, rate: float, kind: str = "", key: str = "all/it"
) -> dict[str, list[float]]:
    """What the subscriber there reports of what a program publishes here."""
    with start(f"subscribe{kind}", there, key, count) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "subscribed\n"
        with start(f"publish{kind}", here, key, count, rate):
            report: dict[str, list[float]] = json.loads(reader.stdout.readline())
    return report


def percentiles(report: dict[str, list[float]]) -> str:
    values = sorted(report["latencies_us"])
    return f"p50 {values[len(values) // 2]:.0f} p99 {values[len(values) * 99 // 100]:.0f} us"


def cpu_us_each(before: dict[str, int], after: dict[str, int], count: int) -> str:
    return ", ".join(f"{name} {(after[name] - before[name]) / count / 1e3:.1f}" for name in after)


@click.group()
def main() -> None:
    """Measure bridges on this machine."""


@main.command()
@click.argument("words", nargs=-1)
def program(words: tuple[str, ...]) -> None:
    name, place, key, count, *rate = words
    PROGRAMS[name](place, key, int(count), *map(float, rate))


@main.command()
@click.option("--repetitions", default=5)
def crossing(repetitions: int) -> None:
    """One crossing, in turn with a bus alone and with NATS alone; then as much as goes through."""
    with joined(2) as ((here, there), server):
        for _ in range(repetitions):
            count = 3 * RATE_PER_SECOND
            for name, place, publisher, kind in (
                ("crossing", there.bus.address, here.bus.address, ""),
                ("NATS alone", server.url, server.url, "-plain"),
                ("bus alone", here.bus.address, here.bus.address, ""),
            ):
                key = "all/it" if name == "crossing" else "alone"
                report = run_pair(place, publisher, count, RATE_PER_SECOND, kind, key)
                click.echo(f"{name}: {percentiles(report)}")
        for _ in range(repetitions):
            count, before = 200_000, here.cpu_ns() | there.cpu_ns()
            report = run_pair(there.bus.address, here.bus.address, count, 0)
            each = cpu_us_each(before, here.cpu_ns() | there.cpu_ns(), count)
            click.echo(f"{count / report['seconds'][0]:.0f} messages/s, us of CPU each: {each}")


@main.command()
@click.option("--repetitions", default=3)
@click.option("--seconds", default=30)
def away(repetitions: int, seconds: int) -> None:
    """Local messages while NATS is there, and while it is away."""
    with joined(2) as ((here, _), server):
        for _ in range(repetitions):
            for state in ("there", "away"):
                if state == "away":
                    server.kill()
                address = here.bus.address
                report = run_pair(address, address, seconds * RATE_PER_SECOND, RATE_PER_SECOND)
                memory = proportional_memory_bytes(here.bridge.process.pid) / 1e6
                link = here.bridge.status()["links"][0]
                click.echo(
                    f"NATS {state}: {percentiles(report)}, bridge has {memory:.1f} MB, "
                    f"{link['waiting_bytes']} bytes wait, given up {link['given_up']}"
                )
            server.start()
            here.bridge.wait_importers("all")


@main.command()
@click.option("--rate", "rates", multiple=True, type=float, default=(300.0, 1_000.0, 3_000.0))
@click.option("--seconds", default=10)
def hosts(rates: tuple[float, ...], seconds: int) -> None:
    """CPU time of each host's bridge and bus, by the messages per second of each of 2 to 6 hosts
    that all import from all."""
    for rate in rates:
        for count in range(2, 7):
            with joined(count) as (all_hosts, _):
                cpu_ns, imported = cost_of(all_hosts, int(rate * seconds), rate)
            parts = ", ".join(
                f"{what} {used / count / seconds / 1e9:.2%} of a processor"
                for what, used in cpu_ns.items()
            )
            each_us = sum(cpu_ns.values()) / imported / 1e3
            click.echo(
                f"{count} hosts with {rate:.0f} messages/s each, {imported} imported: each host's "
                f"{parts}, together {each_us:.1f} us for each that was imported"
            )


def cost_of(all_hosts: list[Host], number: int, rate: float) -> tuple[Counter[str], int]:
    """CPU time of all bridges and buses while each host publishes, and how many were imported."""
    before = [host.cpu_ns() for host in all_hosts]
    publishers = [start("publish", host.bus.address, "all/it", number, rate) for host in all_hosts]
    for publisher in publishers:
        publisher.communicate()
    cpu_ns: Counter[str] = Counter()
    for host, was in zip(all_hosts, before, strict=True):
        for name, now in host.cpu_ns().items():
            cpu_ns[name.partition(" ")[0]] += now - was[name]
    statuses = [host.bridge.status()["channels"][0] for host in all_hosts]
    return cpu_ns, sum(status["imported"] for status in statuses)


if __name__ == "__main__":
    main()
