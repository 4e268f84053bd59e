"""Observes a bus in the sandbox of its unit, beside a booted systemd (see `booted`).

It prints its observations as one JSON object; the tests judge them.
"""

import json
import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.admin import Admin
from tests.support.inheritance import inherited_connection
from tests.support.raw_client import RawClient
from tests.support.time_slices import time_slice_ns

BUS = "/run/sbus.socket"
CONFIG = Path("/etc/sbus/sbus.toml")
UNTIL_SECONDS_MAX = 60.0
"""Of which some are needed where systemd starts a bus twenty times in vain, on a busy machine."""
UID, GID, GROUPS = 61_111, 61_112, 300
PROGRAM = "probe program"
FIRST_GROUP = 70_000
RULES = f"""
[[rules]]
deny = ["connect"]
[[rules]]
allow = ["connect"]
users = [0]
[[rules]]
allow = ["connect"]
groups = [{FIRST_GROUP + GROUPS - 1}]
"""
"""So the bus has to ask the kernel for all of a client's groups."""


def systemctl(*words: str) -> str:
    done = subprocess.run(
        ["systemctl", "--no-pager", *words], capture_output=True, timeout=120, check=False
    )
    return (done.stdout + done.stderr).decode().strip()


def until(what: Callable[[], Any]) -> Any:
    """The first true result of the call."""
    deadline = time.monotonic() + UNTIL_SECONDS_MAX
    while time.monotonic() < deadline:
        with suppress(OSError):
            if found := what():
                return found
        time.sleep(0.01)
    raise TimeoutError(what)


def as_client() -> None:
    """A user with more groups than fit into Python's getsockopt, in a program of another name."""
    Path("/proc/self/comm").write_text(PROGRAM)
    os.setgroups(range(FIRST_GROUP, FIRST_GROUP + GROUPS))
    os.setresgid(GID, GID, GID)
    os.setresuid(UID, UID, UID)


def identity() -> dict[str, Any]:
    """The identity of a client as client and administrator see it, and as the kernel does."""
    with inherited_connection(BUS, as_client) as client:
        client.send(b"CMSG !/cred/whoami")
        whoami = client.receive()
        with Admin(f"{BUS}.admin") as admin:
            clients = [c for c in admin.ask("clients")["clients"] if c["pid"] == client.parent]
        return {"whoami": whoami.decode(), "clients": clients, "pid": client.parent}


def processes() -> dict[str, int]:
    """The processes of the bus, by name; whatever the front calls itself, it is `front` here."""
    front = systemctl("show", "-P", "MainPID", "sbusd")
    found = {"front": int(front)}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            name = (entry / "comm").read_text().strip()
            if name.startswith("sbusd-"):
                found[name] = int(entry.name)
    return found


def confinement(pid: int | str) -> dict[str, str]:
    """The restrictions of a process, from the kernel."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    names = ("Uid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
    spaces = {space: os.readlink(f"/proc/{pid}/ns/{space}") for space in ("net", "user", "pid")}
    return {**{name: status[name] for name in names}, **spaces}


def exchange() -> list[str]:
    """Messages between as many clients as there are workers, so that some cross workers."""
    clients = [RawClient(BUS) for _ in range(4)]
    for client in clients:
        client.sub(b"key")
        client.sync()
    clients[0].pub(b"key", b"payload")
    received = [client.receive().decode() for client in clients]
    for client in clients:
        client.close()
    return received


def metrics() -> str:
    """What the exporter answers."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect("/run/sbus-metrics.socket")
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: sock.recv(65_536), b"")).decode()


def configure(text: str) -> str:
    """Add options to the configuration; returns what it was before."""
    before = CONFIG.read_text()
    CONFIG.write_text(before.replace("[bus]\n", f"[bus]\n{text}\n"))
    return before


def upgrade(command: Sequence[str]) -> dict[str, Any]:
    """What this command, which is to upgrade the bus, does to it and to its clients."""
    with RawClient(BUS) as client, RawClient(BUS) as other:
        client.sub(b"key")
        client.sync()
        before = processes()["front"]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        after = processes()["front"]
        if after != before:
            until(lambda: not Path(f"/proc/{before}").exists())
        other.pub(b"key", b"payload")
        return {
            "received": client.receive().decode(),
            "is another process": after != before,
            "uid": os.stat(f"/proc/{after}").st_uid,
            "is confined": confinement(after)["Seccomp"] == "2",
            "status": systemctl("show", "-P", "StatusText", "sbusd"),
            "state": systemctl("show", "-P", "ActiveState", "sbusd"),
            "output": (done.stdout + done.stderr).decode(),
        }


def upgrade_as_root() -> dict[str, Any]:
    """A bus that root has started in the background, and upgrades: which user serves it before and
    afterwards, and what is left at its end."""
    address, private = "/run/t/other", Path("/run/t/private")
    private.mkdir(0o700)
    subprocess.run(
        ["/run/t/sbusd", "-oa", address, "-p", f"{address}.pid", "--workers=2"],
        cwd=private,
        stdout=subprocess.DEVNULL,
        timeout=120,
        check=True,
    )
    with RawClient(address) as client:
        uids, pids = [], []
        for _ in range(2):
            pids.append(int(Path(f"{address}.pid").read_text()))
            uids.append(os.stat(f"/proc/{pids[-1]}").st_uid)
            client.whoami()
            command = ["/run/t/sbusctl", "-a", address, "upgrade"]
            done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        client.whoami()
    os.kill(int(Path(f"{address}.pid").read_text()), signal.SIGTERM)
    until(lambda: not os.path.lexists(address) and not os.path.lexists(f"{address}.pid"))
    return {"uids": uids, "processes": len(set(pids)), "errors": done.stderr.decode()}


def is_replaced_when_hung() -> bool:
    """Whether systemd ends a front that stopped, and starts another, when it watches closely; also
    one that has taken over the bus."""
    drop_in = Path("/run/systemd/system/sbusd.service.d/watchdog.conf")
    drop_in.write_text("[Service]\nWatchdogSec=1s\nRestartSec=0\n")
    systemctl("daemon-reload")
    systemctl("restart", "sbusd.service")
    systemctl("reload", "sbusd.service")
    hung = processes()["front"]
    fed_at = watchdog_time()
    until(lambda: watchdog_time() != fed_at)
    os.kill(hung, signal.SIGSTOP)
    return bool(until(lambda: processes()["front"] not in (0, hung)))


def watchdog_time() -> str:
    """When systemd had the last sign of life."""
    return systemctl("show", "-P", "WatchdogTimestampMonotonic", "sbusd.service")


def drain() -> tuple[str, str]:
    """What a client hears that comes while the bus drains, and how the bus is meanwhile."""
    with Admin(f"{BUS}.admin") as admin, RawClient(BUS) as last:
        last.whoami()
        admin.ask("drain")
        waiting = RawClient(BUS)
        waiting.control(b"!/cred/whoami")
        status = systemctl("show", "-P", "StatusText", "sbusd.service")
    with waiting:
        return waiting.receive(20).decode(), status


def ask_a_stopped_bus() -> list[str]:
    """What an administrator and a scraper hear, and whether the admin socket is there."""
    done = subprocess.run(
        ["/run/t/sbusctl", "stats"], capture_output=True, timeout=UNTIL_SECONDS_MAX, check=False
    )
    (up,) = [line for line in metrics().splitlines() if line.startswith("sbus_up ")]
    return [done.stderr.decode(), up, systemctl("is-active", "sbusd-admin.socket")]


def main() -> None:
    seen: dict[str, Any] = {}
    until(lambda: os.path.exists(BUS))
    with CONFIG.open("a") as file:
        file.write(RULES)
    # Nobody has started the bus: the first client does.
    seen["before"] = systemctl("is-active", "sbusd.service")
    seen["received"] = exchange()
    seen["identity"] = identity()
    seen["own"] = confinement("self")
    seen["processes"] = {name: confinement(pid) for name, pid in processes().items()}
    seen["time slices"] = [time_slice_ns(pid) for pid in processes().values()]
    seen["user"] = pwd.getpwnam("sbus").pw_uid
    seen["status"] = systemctl("show", "-P", "StatusText", "sbusd")
    seen["modes"] = [oct(os.stat(path).st_mode & 0o777) for path in (BUS, f"{BUS}.admin")]
    seen["owners"] = [os.stat(path).st_uid for path in (BUS, f"{BUS}.admin")]
    configure("workers = 3")
    seen["reload"] = upgrade(["systemctl", "reload", "sbusd"])
    before = configure("nonsense = 1")
    seen["failing reload"] = upgrade(["systemctl", "reload", "sbusd"])
    CONFIG.write_text(before)
    seen["take-over"] = upgrade(["/run/t/sbusd", "--take-over", "-f", "-a", BUS])
    seen["by root"] = upgrade_as_root()
    worker, old = next(item for item in processes().items() if "worker" in item[0])
    os.kill(old, signal.SIGKILL)
    until(lambda: processes().get(worker, old) != old)
    seen["received with a new worker"] = exchange()
    seen["stderr"] = Path("/run/t/stderr").read_text()
    systemctl("start", "sbus-metrics.socket")
    seen["metrics"] = metrics()
    seen["answered after a drain"], seen["drained"] = drain()
    # A client that connects while there is no bus waits for the next one.
    systemctl("stop", "sbusd.service")
    seen["asked"] = ask_a_stopped_bus()
    seen["stopped"] = systemctl("is-active", "sbusd.service")
    seen["received after a stop"] = exchange()
    seen["replaced when hung"] = is_replaced_when_hung()
    seen["received after it hung"] = exchange()
    systemctl("stop", "sbusd.socket", "sbusd.service", "sbusd-admin.socket")
    seen["left"] = [path for path in (BUS, f"{BUS}.admin") if os.path.lexists(path)]
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
