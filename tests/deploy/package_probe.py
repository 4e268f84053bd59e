"""Installs a package over another one, while clients use the bus (see `booted`).

It prints its observations as one JSON object; the tests judge them.
"""

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tests.deploy.sandbox_probe import BUS, CONFIG, systemctl, until
from tests.deploy.store_probe import CLIENTS, USERS, Clients, connect, front
from tests.support.admin import Admin

PACKAGES = Path("/run/t/packages")
INSTALL_SECONDS_MAX = 120
QUICK = ("--force-unsafe-io", "--no-triggers")
ENVIRONMENT = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "DEBIAN_FRONTEND": "noninteractive"}


class Asker:
    """A client that asks all the time; `longest_s` is the longest that it waited for a reply."""

    def __init__(self) -> None:
        self._client = connect(USERS[1])
        self._has_to_end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_s = 0.0

    def _run(self) -> None:
        while not self._has_to_end.is_set():
            began_at = time.monotonic()
            self._client.whoami()
            self.longest_s = max(self.longest_s, time.monotonic() - began_at)

    def __enter__(self) -> "Asker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_to_end.set()
        self._thread.join()
        self._client.close()


def dpkg(*words: str | Path) -> tuple[int, str]:
    """The status and what it prints."""
    done = subprocess.run(
        ["dpkg", *QUICK, *words],
        env=ENVIRONMENT,
        capture_output=True,
        timeout=INSTALL_SECONDS_MAX,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).decode()


def install(package: str, expected_status: int = 0) -> str:
    """Install it; what that prints."""
    status, printed = dpkg("-i", PACKAGES / package)
    assert status == expected_status, printed
    return printed


def version() -> str:
    with Admin(f"{BUS}.admin") as admin:
        return str(admin.ask("version")["version"])


def installed(package: str, clients: Clients, expected_status: int = 0) -> dict[str, Any]:
    """What clients notice while this package is installed."""
    before = front()
    with Asker() as asker:
        printed = install(package, expected_status)
    return {
        "version": version(),
        "is another process": front() not in (0, before),
        "lost": clients.lost(),
        "longest wait": asker.longest_s,
        "printed": printed,
    }


def with_a_newer_setting(clients: Clients) -> dict[str, Any]:
    """An older package is installed while the configuration has a setting that it does not know."""
    good = CONFIG.read_text()
    CONFIG.write_text(good.replace("[bus]", "[bus]\nsetting_of_a_later_version = 1", 1))
    seen = installed("new.deb", clients, expected_status=1)
    CONFIG.write_text(good)
    status, printed = dpkg("--configure", "sbus")
    return {**seen, "configured": status, "printed then": printed}


def purged() -> list[str]:
    """What is still enabled when a package is purged of which everything was enabled."""
    units = ("sbus-recorder.service", "sbus-bridge.service", "sbus-metrics.socket")
    for unit in units:
        systemctl("enable", unit)
    links = list(Path("/etc/systemd").rglob("*.wants/sbus*"))
    assert len(links) == len(units) + 2, links
    status, printed = dpkg("--purge", "sbus")
    assert status == 0, printed
    return [str(path) for path in Path("/etc/systemd").rglob("*.wants/sbus*")]


def main() -> None:
    until(lambda: systemctl("is-active", "test.target") == "active")
    install("old.deb")
    clients = Clients(CLIENTS)
    seen = {
        "first": version(),
        "upgrade": installed("new.deb", clients),
        "downgrade": installed("old.deb", clients),
        "changed unit": installed("unit.deb", clients),
        "broken": installed("broken.deb", clients, expected_status=1),
        "mended": install("old.deb"),
        "newer setting": with_a_newer_setting(clients),
        "running without a client": systemctl("is-enabled", "sbusd.service"),
        "state": systemctl("is-active", "sbusd.service"),
        "stderr": Path("/run/t/stderr").read_text(),
    }
    clients.close()
    seen["still enabled"] = purged()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
