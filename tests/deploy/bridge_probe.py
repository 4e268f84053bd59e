"""Kills the bridge of a bus again and again, whose connections a booted systemd keeps (see
`booted`).

It prints its observations as one JSON object; the tests judge them.
"""

import asyncio
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import nats

import sbus
from sbus.bridge.envelope import HEADER
from tests.deploy.booted import exec_lines
from tests.deploy.sandbox_probe import BUS, systemctl, until
from tests.support.bridges import BridgeOfBus, nats_server

UNIT = "sbus-bridge.service"
CONFIG = """
[bridge]
origin = "here"
state = "/var/lib/sbus/bridge"
[channels.out]
patterns = ["out/"]
durable = {{}}
[channels.in]
patterns = ["in/"]
durable = {{}}
[links.office]
servers = ["{url}"]
export = ["out"]
import = ["in"]
"""
KILLS = 5
ROUND_MESSAGES = 300
MESSAGES = KILLS * ROUND_MESSAGES


def start_bridge(url: str) -> None:
    Path("/etc/sbus/bridge.toml").write_text(CONFIG.format(url=url))
    drop_in = Path(f"/run/systemd/system/{UNIT}.d/test.conf")
    drop_in.parent.mkdir()
    drop_in.write_text(
        "[Unit]\nDefaultDependencies=no\n[Service]\nStandardError=append:/run/t/stderr\n"
        + exec_lines(UNIT)
    )
    systemctl("daemon-reload")
    assert systemctl("start", UNIT) == ""


def main_pid() -> int:
    return int(systemctl("show", "-P", "MainPID", UNIT))


def kill_bridge() -> None:
    before = main_pid()
    os.kill(before, signal.SIGKILL)
    until(lambda: main_pid() not in (0, before))


def publish_here() -> None:
    with sbus.blocking.connect(BUS) as bus:
        for number in range(MESSAGES):
            bus.publish("out/x", str(number))
            if number % ROUND_MESSAGES == ROUND_MESSAGES // 2:
                kill_bridge()
        bus.sync()


async def publish_there(url: str) -> None:
    client = await nats.connect(url)
    for number in range(1, MESSAGES + 1):
        await client.jetstream().publish(
            "sbus.d.in.there.in.x",
            str(number - 1).encode(),
            headers={HEADER: f"1 ab {number} there = = =", "Sbus-Acked": "0"},
        )
    await client.close()


async def received_there(url: str) -> list[int]:
    client = await nats.connect(url)
    reader = await client.jetstream().subscribe("sbus.d.out.>", ordered_consumer=True)
    received = [int((await reader.next_msg(60)).data) for _ in range(MESSAGES)]
    await client.close()
    return received


async def make_streams(url: str) -> None:
    client = await nats.connect(url)
    for name in ("out", "in"):
        await client.jetstream().add_stream(name=f"sbus_{name}", subjects=[f"sbus.d.{name}.>"])
    await client.close()


def is_joined() -> bool:
    status = BridgeOfBus(address=BUS).status()
    reading = {channel["name"] for channel in status["channels"] if channel["is_reading"]}
    importing = {durable["channel"] for durable in status["durable"] if durable["is_importing"]}
    return (reading, importing) == ({"out"}, {"in"})


def killed(url: str) -> dict[str, Any]:
    """What arrives on both sides while the bridge is killed."""
    with sbus.blocking.connect(BUS, losses="report") as bus:
        bus.subscribe("in/")
        bus.subscribe("bridge/lost/")
        bus.sync()
        feeder = threading.Thread(target=lambda: asyncio.run(publish_there(url)))
        feeder.start()
        publish_here()
        feeder.join()
        arrived: list[str] = []
        while len(arrived) < MESSAGES:
            for item in bus.receive_many(timeout_seconds=60):
                arrived.append(
                    item.payload.decode() if isinstance(item, sbus.Message) else str(item)
                )
    return {
        "there": asyncio.run(received_there(url)),
        "here": arrived,
        "restarts": int(systemctl("show", "-P", "NRestarts", UNIT)),
        "stored": int(systemctl("show", "-P", "NFileDescriptorStore", UNIT)),
    }


def main() -> None:
    until(lambda: os.path.exists(BUS))
    with nats_server(Path("/tmp"), "-js", "-sd", "/tmp/js") as server:
        asyncio.run(make_streams(server.url))
        start_bridge(server.url)
        until(is_joined)
        seen = killed(server.url)
    seen["stderr"] = Path("/run/t/stderr").read_text()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
