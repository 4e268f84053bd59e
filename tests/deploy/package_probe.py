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

from tests.deploy.sandbox_probe import BUS, systemctl, until
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


def install(package: str) -> str:
    """Install it; what that prints."""
    done = subprocess.run(
        ["dpkg", *QUICK, "-i", PACKAGES / package],
        env=ENVIRONMENT,
        capture_output=True,
        timeout=INSTALL_SECONDS_MAX,
        check=False,
    )
    printed = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, printed
    return printed


def version() -> str:
    with Admin(f"{BUS}.admin") as admin:
        return str(admin.ask("version")["version"])


def installed(package: str, clients: Clients) -> dict[str, Any]:
    """What clients notice while this package is installed."""
    before = front()
    with Asker() as asker:
        printed = install(package)
    return {
        "version": version(),
        "is another process": front() not in (0, before),
        "lost": clients.lost(),
        "longest wait": asker.longest_s,
        "printed": printed,
    }


def main() -> None:
    until(lambda: systemctl("is-active", "test.target") == "active")
    install("old.deb")
    clients = Clients(CLIENTS)
    seen = {
        "first": version(),
        "upgrade": installed("new.deb", clients),
        "downgrade": installed("old.deb", clients),
        "broken": installed("broken.deb", clients),
        "state": systemctl("is-active", "sbusd.service"),
        "stderr": Path("/run/t/stderr").read_text(),
    }
    clients.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
