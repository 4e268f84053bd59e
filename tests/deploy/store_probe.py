"""Ends processes of a bus whose clients a booted systemd keeps (see `booted`).

It prints its observations as one JSON object; the tests judge them.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.deploy.sandbox_probe import BUS, processes, systemctl, until
from tests.support.processes import kill_at_once
from tests.support.raw_client import RawClient
from tests.support.users import effective_user

USERS = (0, 61_201, 61_202)
EARLY = 3
CLIENTS = 30
MANY = 500
BACKLOG = 20
PAYLOAD = b"x" * 100_000


def connect(uid: int) -> RawClient:
    with effective_user(uid):
        return RawClient(BUS)


class Clients:
    """Clients of several users. Each subscribes to one key of all and one of its own, and every
    second one wants no echo."""

    def __init__(self, count: int) -> None:
        self.all = [connect(USERS[number % len(USERS)]) for number in range(count)]
        self.connected_at = time.monotonic()
        for number, client in enumerate(self.all):
            client.control(b"!/notices/on")
            if number % 2:
                client.control(b"echo/off")
            client.sub(b"all")
            client.sub(b"own/%d" % number)
        self.credentials = [client.whoami() for client in self.all]

    def lost(self) -> dict[str, int]:
        """How many connections, credentials, subscriptions and choices are not what they were."""
        found = dict.fromkeys(("connections", "credentials", "subscriptions", "choices"), 0)
        for number, client in enumerate(self.all):
            try:
                found["credentials"] += client.whoami() != self.credentials[number]
            except (AssertionError, OSError):
                found["connections"] += 1
        for number, client in enumerate(self.all):
            client.pub(b"own/%d" % number, b"")
            found["choices"] += client.sync() != [b"MSG own/%d\0" % number] * (not number % 2)
        self.all[0].pub(b"all", b"")
        for client in self.all:
            found["subscriptions"] += client.sync() != [b"MSG all\0"]
        return found

    def close(self) -> None:
        for client in self.all:
            client.close()


def stored() -> int:
    return int(systemctl("show", "-P", "NFileDescriptorStore", "sbusd.service"))


def wait_until_stored(clients: int) -> None:
    """The memory is stored, too."""
    until(lambda: stored() == clients + 1)


def front() -> int:
    return processes()["front"]


def kill_front() -> None:
    os.kill(front(), signal.SIGKILL)


def kill_all() -> None:
    kill_at_once(processes().values())


def restart() -> None:
    assert systemctl("restart", "sbusd.service") == ""


def survived(end: Callable[[], None], clients: Clients) -> dict[str, Any]:
    """What clients lose by this, and for how long they were not served. One of them does not read,
    and one publishes behind it."""
    slow, publisher = connect(USERS[1]), connect(USERS[1])
    slow.control(b"!/notices/on")
    slow.sub(b"flood")
    slow.sync()
    for _ in range(BACKLOG):
        publisher.pub(b"flood", PAYLOAD)
    publisher.sync()
    wait_until_stored(len(clients.all) + 2)
    before, restarts_before = front(), restarts()
    began_at = time.monotonic()
    end()
    until(lambda: front() not in (0, before))
    publisher.pub(b"flood", b"behind")
    publisher.sync()
    pause_s = time.monotonic() - began_at
    received = [packet.replace(PAYLOAD, b"PAYLOAD").decode() for packet in slow.sync()]
    for client in (slow, publisher):
        client.close()
    seen = {
        "lost": clients.lost(),
        "received": received,
        "pause": pause_s,
        "restarts": (restarts_before, restarts()),
        "state": until(settled_state),
    }
    wait_until_stored(len(clients.all))
    return seen


def restarts() -> int:
    return int(systemctl("show", "-P", "NRestarts", "sbusd.service"))


def settled_state() -> str:
    """That of the service, once systemd has heard that it is ready; "" before."""
    found = systemctl("is-active", "sbusd.service")
    return "" if found == "activating" else found


def early() -> dict[str, Any]:
    """What clients lose whose connections have started the bus."""
    clients = Clients(EARLY)
    served_at_us = int(systemctl("show", "-P", "ActiveEnterTimestampMonotonic", "sbusd.service"))
    wait_until_stored(EARLY)
    before = front()
    kill_all()
    until(lambda: front() not in (0, before))
    lost = clients.lost()
    clients.close()
    wait_until_stored(0)
    return {"lost": lost, "were early": clients.connected_at < served_at_us / 1e6}


def stopped() -> dict[str, Any]:
    """What clients are told by a real stop, and what is left in the store."""
    client = connect(USERS[1])
    client.control(b"!/notices/on")
    client.sync()
    wait_until_stored(1)
    systemctl("stop", "sbusd.service")
    return {"told": [packet.decode() for packet in client.receive_until_closed()], "left": stored()}


def many() -> dict[str, Any]:
    """What as many clients lose, and for how long they are not served."""
    clients = Clients(MANY)
    wait_until_stored(MANY)
    before = front()
    began_at = time.monotonic()
    kill_all()
    until(lambda: front() not in (0, before))
    for client in clients.all:
        client.whoami()
    pause_s = time.monotonic() - began_at
    lost = clients.lost()
    clients.close()
    wait_until_stored(0)
    return {"lost": lost, "pause": pause_s}


def upgraded(clients: Clients) -> dict[str, int]:
    """What clients lose when a bus that has taken over is killed."""
    before = front()
    assert systemctl("reload", "sbusd.service") == ""
    until(lambda: front() not in (0, before))
    until(lambda: stored() > len(clients.all))
    before = front()
    kill_all()
    until(lambda: front() not in (0, before))
    return clients.lost()


def mended() -> dict[str, Any]:
    """What clients lose when the next bus cannot start until its configuration is mended."""
    clients = Clients(EARLY)
    wait_until_stored(EARLY)
    file = Path("/etc/sbus/sbus.toml")
    good = file.read_text()
    file.write_text("nonsense = 1")
    kill_all()
    until(lambda: restarts() > 2)
    file.write_text(good)
    until(lambda: settled_state() == "active")
    lost = clients.lost()
    clients.close()
    return lost


def main() -> None:
    until(lambda: os.path.exists(BUS))
    seen: dict[str, Any] = {}
    file = Path("/etc/sbus/sbus.toml")
    file.write_text(file.read_text().replace("[bus]", '[bus]\nplacement = "spread"', 1))
    seen["early"] = early()
    clients = Clients(CLIENTS)
    for end in (kill_front, restart):
        seen[end.__name__] = survived(end, clients)
    seen["after an upgrade"] = upgraded(clients)
    clients.close()
    wait_until_stored(0)
    seen["many"] = many()
    seen["stopped"] = stopped()
    seen["mended"] = mended()
    seen["stderr"] = Path("/run/t/stderr").read_text()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
