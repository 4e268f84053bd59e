"""The brokers that are compared: what each needs, and how it is started.

Each is set up as its documentation recommends for messages within one host that need not survive:
a unix socket where it has one, nothing written to disk, and no bound on a queue at which it would
drop what others deliver. docs/benchmarks.md tells it broker by broker.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from sbus.bench import BenchmarkFailed
from sbus.bench.programs import START_SECONDS_MAX, Child, compile_program, running
from sbus.bench.servers import RunSettings, Server

POLL_SECONDS = 0.01
PROGRAM_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
MOSQUITTO_SETTINGS = """\
listener 0 {socket}
allow_anonymous true
max_queued_messages 0
persistence false
log_dest none
user root
"""
REDIS_OPTIONS = ("--port", "0", "--save", "", "--appendonly", "no")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A server that may be compared. `start` raises BenchmarkFailed when it is not installed."""

    protocol: str
    """As load.c calls it."""
    start: Callable[[RunSettings], AbstractContextManager[Server]]
    package: str = ""
    """The Debian package that has it; "" for what this project brings along."""
    is_broker: bool = True
    """The relays are none: they show what the kernel takes."""
    is_sbus: bool = False

    def version(self) -> str:
        """Of its Debian package; "" where that is not known."""
        if not self.package or not shutil.which("dpkg-query"):
            return ""
        query = ["dpkg-query", "--show", "--showformat", "${Version}", self.package]
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout


class NotInstalled(BenchmarkFailed):
    """A peer is not on this machine."""


def find(program: str, package: str) -> str:
    """The path of a program; raises NotInstalled."""
    path = shutil.which(program, path=PROGRAM_PATH)
    if path is None:
        raise NotInstalled(f"{program} is not installed: apt-get install {package}")
    return path


@contextlib.contextmanager
def serving(run: RunSettings, name: str, command: Sequence[str], address: str) -> Iterator[Server]:
    """A broker of one process, which accepts connections; it ends with the block."""
    with running(name, command, run.directory, run.broker_cpus) as child:
        for endpoint in address.split(","):
            wait_until_it_listens(child, endpoint)
        yield Server(address, child, 1)


def wait_until_it_listens(child: Child, endpoint: str) -> None:
    """Return when it accepts connections; raises BenchmarkFailed when it ends or takes too long."""
    host, colon, port = endpoint.rpartition(":")
    family = socket.AF_INET if colon else socket.AF_UNIX
    target = (host, int(port)) if colon else endpoint
    deadline = time.monotonic() + START_SECONDS_MAX
    while child.process.poll() is None and time.monotonic() < deadline:
        with socket.socket(family) as probe:
            if probe.connect_ex(target) == 0:
                return
        time.sleep(POLL_SECONDS)
    raise BenchmarkFailed(f"{child.name} does not start: {child.error_output()}")


def fresh_socket(run: RunSettings, name: str) -> str:
    """A path for a socket, where nothing is left of a server before."""
    path = run.directory / name
    path.unlink(missing_ok=True)
    return str(path)


# -- each of them ---------------------------------------------------------------------------------
def start_dbus_broker(run: RunSettings) -> AbstractContextManager[Server]:
    find("dbus-broker", "dbus-broker")
    path = fresh_socket(run, "dbus-broker.socket")
    command = [sys.executable, "-m", "sbus.bench.peers.dbus_controller", path]
    return serving(run, "dbus-broker", command, path)


def start_dbus_daemon(run: RunSettings) -> AbstractContextManager[Server]:
    path = fresh_socket(run, "dbus-daemon.socket")
    command = [find("dbus-daemon", "dbus-daemon"), "--session", "--nofork", "--nopidfile"]
    return serving(run, "dbus-daemon", [*command, f"--address=unix:path={path}"], path)


def start_mosquitto(run: RunSettings) -> AbstractContextManager[Server]:
    path = fresh_socket(run, "mosquitto.socket")
    settings = run.directory / "mosquitto.conf"
    settings.write_text(MOSQUITTO_SETTINGS.format(socket=path))
    command = [find("mosquitto", "mosquitto"), "-c", str(settings)]
    return serving(run, "mosquitto", command, path)


def start_nats(run: RunSettings) -> AbstractContextManager[Server]:
    """Over TCP, as it has no unix sockets; on a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host, port = probe.getsockname()
    command = [find("nats-server", "nats-server"), "-a", host, "-p", str(port)]
    return serving(run, "nats", command, f"{host}:{port}")


def start_redis(run: RunSettings) -> AbstractContextManager[Server]:
    path = fresh_socket(run, "redis.socket")
    command = [find("redis-server", "redis-server"), *REDIS_OPTIONS, "--unixsocket", path]
    return serving(run, "redis", command, path)


def start_zeromq(run: RunSettings) -> AbstractContextManager[Server]:
    try:
        sources = ("peers/zeromq_proxy.c", "client.c")
        compile_program(run.directory, "zeromq_proxy", sources, ["-lzmq"])
    except BenchmarkFailed as error:
        raise NotInstalled("zmq.h is not installed: apt-get install libzmq3-dev") from error
    paths = [fresh_socket(run, f"zeromq-{side}.socket") for side in ("in", "out")]
    command = [str(run.directory / "zeromq_proxy"), *(f"ipc://{path}" for path in paths)]
    return serving(run, "zeromq", command, ",".join(paths))


def sbus_with(workers: int, placement: str = "load") -> Peer:
    return Peer(
        protocol="sbus", start=lambda run: run.broker(workers, placement=placement)(), is_sbus=True
    )


def relay(mode: str) -> Peer:
    return Peer(protocol="sbus", start=lambda run: run.relay(mode)(), is_broker=False)


def variant(peer: Peer, name: str, value: str) -> Peer:
    """The same with an environment variable."""

    @contextlib.contextmanager
    def start(run: RunSettings) -> Iterator[Server]:
        before = os.environ.get(name)
        os.environ[name] = value
        try:
            with peer.start(run) as server:
                yield server
        finally:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before

    return replace(peer, start=start)


PEERS = {
    "sbus-1": sbus_with(workers=1),
    "sbus-8": sbus_with(workers=8),
    "sbus-2-apart": sbus_with(workers=2, placement="spread"),
    "sbus-8-apart": sbus_with(workers=8, placement="spread"),
    "relay": relay("each"),
    "relay-drain": relay("drain"),
    "dbus-broker": Peer(protocol="dbus", start=start_dbus_broker, package="dbus-broker"),
    "dbus-daemon": Peer(protocol="dbus", start=start_dbus_daemon, package="dbus-daemon"),
    "mosquitto": Peer(protocol="mqtt", start=start_mosquitto, package="mosquitto"),
    "nats": Peer(protocol="nats", start=start_nats, package="nats-server"),
    "redis": Peer(protocol="redis", start=start_redis, package="redis-server"),
    "zeromq": Peer(protocol="zmtp", start=start_zeromq, package="libzmq5"),
}
"""By name, in the order of the tables. `sbus-N` has N workers, and chooses those of its clients; in
`apart` publisher and subscriber have different ones."""
