"""A bus that starts before its host is ready, beside a booted systemd (see `booted`).

Its rules name users of a directory that does not answer yet; here that is a line of /etc/passwd
that is missing. Then its configuration is wrong for longer than systemd tries other services.
It prints its observations as one JSON object; the tests judge them.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.deploy.sandbox_probe import BUS, CONFIG, systemctl, until
from tests.deploy.store_probe import restarts, settled_state
from tests.support.admin import Admin
from tests.support.raw_client import RawClient
from tests.support.users import effective_user

LATER, FRIEND, STRANGER, LOCAL = 61_301, 61_302, 61_303, 1
"""The first two are in the directory, and the last one is a user of /etc/passwd."""
FAILURES = 7
"""systemd's own limit for a service is 5; `test_units` looks for others in the unit."""
RULES = """
[[rules]]
deny = ["publish"]
[[rules]]
allow = ["publish"]
users = ["friend", "daemon"]
[[rules]]
deny = ["connect"]
users = ["later"]
[users.friend]
connections_max = 7
"""


def may_connect(uid: int) -> bool:
    with effective_user(uid), RawClient(BUS) as client:
        with suppress(BrokenPipeError):  # the bus has ended the connection already
            client.control(b"!/cred/whoami")
        return b"!/error\0not-admitted" not in client.receive()


def may_publish(uid: int) -> bool:
    with effective_user(uid), RawClient(BUS) as client:
        client.sub(b"key")
        client.pub(b"key", b"")
        return client.sync() == [b"MSG key\0"]


def rights() -> dict[str, Any]:
    connecting = {uid: may_connect(uid) for uid in (LATER, FRIEND, STRANGER, LOCAL)}
    publishing = {uid: may_publish(uid) for uid in connecting if connecting[uid]}
    return {"connect": connecting, "publish": publishing, "missing": missing()}


def add_users(*users: tuple[str, int]) -> None:
    with Path("/etc/passwd").open("a") as file:
        file.writelines(f"{name}:x:{uid}:{uid}::/:/bin/false\n" for name, uid in users)


def missing() -> int:
    with Admin(f"{BUS}.admin") as admin:
        return int(admin.ask("stats")["missing_names"])


def states() -> dict[str, str]:
    units = ("sbusd.socket", "sbusd-admin.socket", "sbusd.service")
    return {unit: systemctl("is-active", unit) for unit in units}


def main() -> None:
    until(lambda: os.path.exists(BUS))
    good = CONFIG.read_text()
    seen: dict[str, Any] = {}
    CONFIG.write_text(good + RULES)
    seen["before"] = rights()
    add_users(("friend", FRIEND), ("later", LATER))
    until(lambda: missing() == 0)
    seen["after"] = rights()
    seen["stderr"] = Path("/run/t/stderr").read_text()
    systemctl("stop", "sbusd.service")
    CONFIG.write_text("nonsense = 1")
    with RawClient(BUS) as waiting:
        waiting.control(b"!/cred/whoami")
        until(lambda: restarts() > FAILURES)
        seen["while failing"] = states()
        CONFIG.write_text(good)
        seen["served"] = waiting.receive(40).decode()
    until(lambda: settled_state() == "active")
    seen["mended"] = states()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
