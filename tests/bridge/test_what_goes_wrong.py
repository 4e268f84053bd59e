"""Wrong certificates, credentials, permissions, twins, older bridges: one clear error each."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.bridges import (
    NatsServer,
    RunningBridge,
    nats_server,
    needs_nats,
    running_bridge,
    send,
    wait_until,
)
from tests.support.bus import running_bus
from tests.support.needs import needs_tool

pytestmark = needs_nats

CONFIG = """
[bridge]
origin = "{origin}"
[channels.lamps]
patterns = ["lamps/"]
[links.office]
servers = ["{url}"]
export = ["lamps"]
import = ["lamps"]
{more}
"""


@contextmanager
def bridge_at(
    directory: Path, url: str, *, origin: str = "a", more: str = ""
) -> Iterator[RunningBridge]:
    place = directory / origin / str(len(list(directory.iterdir())))
    place.mkdir(parents=True)
    with (
        running_bus(place) as bus,
        running_bridge(bus, place, CONFIG.format(url=url, origin=origin, more=more)) as bridge,
    ):
        yield bridge


def wait_for(bridge: RunningBridge, text: str) -> None:
    """Return when the bridge has reported this, once."""
    wait_until(lambda: text in bridge.stderr_text())
    assert bridge.stderr_text().count(text) == 1


def with_server_config(directory: Path, text: str) -> list[str]:
    (directory / "server.conf").write_text(text)
    return ["-c", str(directory / "server.conf")]


def with_login(server: NatsServer, login: str) -> str:
    return server.url.replace("nats://", f"nats://{login}@")


def test_wrong_credentials(tmp_path: Path) -> None:
    with (
        nats_server(tmp_path, "--user", "me", "--pass", "right") as server,
        bridge_at(tmp_path, with_login(server, "me:wrong")) as bridge,
    ):
        wait_for(bridge, "link office is down: nats: 'Authorization Violation'")
        assert bridge.status()["links"][0]["sessions"] == 0


def test_a_subject_that_is_not_permitted(tmp_path: Path) -> None:
    text = 'authorization { users = [{user: me, password: x, permissions: {publish: "other.>"}}] }'
    with (
        nats_server(tmp_path, *with_server_config(tmp_path, text)) as server,
        bridge_at(tmp_path, with_login(server, "me:x")) as bridge,
    ):
        wait_for(bridge, 'permissions violation for publish to "sbus.m.lamps.a"')
        assert bridge.status()["links"][0]["state"] == "up"


@needs_tool("openssl", "openssl")
def test_a_wrong_certificate(tmp_path: Path) -> None:
    for name in ("right", "wrong"):
        make_certificate(tmp_path, name)
    server_options = ["--tls", "--tlscert", str(tmp_path / "right.pem")]
    server_options += ["--tlskey", str(tmp_path / "right.key")]
    with nats_server(tmp_path, *server_options) as server:
        url = server.url.replace("nats:", "tls:")
        with bridge_at(tmp_path, url, more=f'ca = "{tmp_path}/wrong.pem"') as bridge:
            wait_for(bridge, "certificate verify failed: self-signed certificate")
        with bridge_at(tmp_path, url, more=f'ca = "{tmp_path}/right.pem"') as bridge:
            wait_for(bridge, "link office is up")


def make_certificate(directory: Path, name: str) -> None:
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    words += f" -subj /CN=x -addext subjectAltName=IP:127.0.0.1 -keyout {name}.key -out {name}.pem"
    subprocess.run(["openssl", *words.split()], cwd=directory, check=True, capture_output=True)


def test_a_file_that_is_none_of_its_kind(tmp_path: Path) -> None:
    """Of a link for each of them."""
    (tmp_path / "junk").write_text("junk\n")
    fields = ["nkey", "credentials", "ca", "certificate"]
    with nats_server(tmp_path) as server:
        more = ""
        for field in fields:
            more += f'[links.{field}]\nservers = ["{server.url}"]\nexport = ["lamps"]\n'
            more += f'prefix = "{field}"\n{field} = "{tmp_path}/junk"\n'
        more += f'key = "{tmp_path}/junk"\n'  # of the certificate
        with bridge_at(tmp_path, server.url, more=more) as bridge:
            for field in fields:
                wait_for(bridge, f"link {field} is")
            assert bridge.process.poll() is None


def test_two_bridges_with_one_state_directory(tmp_path: Path) -> None:
    state = f'[bridge]\nstate = "{tmp_path}"'
    text = CONFIG.replace("[bridge]", state).format(url="nats://127.0.0.1:1", origin="a", more="")
    place = tmp_path / "other"
    place.mkdir()
    with (
        running_bus(tmp_path) as bus,
        running_bus(place) as other,
        running_bridge(bus, tmp_path, text) as bridge,
    ):
        bridge.status()
        (place / "bridge.toml").write_text(text)
        done = other.sbusctl("bridge", "--config", str(place / "bridge.toml"))
        assert done.returncode == 1
        assert done.stderr.decode() == f"sbusctl: bridge.state: another bridge uses {tmp_path}\n"


def test_two_buses_with_one_origin(tmp_path: Path) -> None:
    with (
        nats_server(tmp_path) as server,
        bridge_at(tmp_path, server.url) as one,
        bridge_at(tmp_path, server.url) as other,
    ):
        for bridge in (one, other):
            wait_for(bridge, "another bridge has the origin a of this one")


class Linked(NamedTuple):
    """For tests that each invent other origins."""

    server: NatsServer
    bridge: RunningBridge

    def bad(self) -> int:
        return int(self.bridge.status()["links"][0]["bad"])


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    directory = tmp_path_factory.mktemp("linked")
    with nats_server(directory) as server, bridge_at(directory, server.url) as bridge:
        bridge.wait_up()
        yield Linked(server, bridge)


def test_two_other_buses_with_one_origin(linked: Linked) -> None:
    for epoch in (b"ab", b"cd", b"ab"):
        publish(linked.server, b"sbus.m.lamps.b.lamps.1", b"1 %b 1 b = = =" % epoch)
    wait_for(linked.bridge, "two bridges have the origin b")


def test_invented_peers_take_little_memory(linked: Linked) -> None:
    before = linked.bad()
    with socket.create_connection(("127.0.0.1", linked.server.port)) as sock:
        hello = b'{"origin": "%d", "host": "h", "version": ""}'
        hellos = [hello % number for number in range(2_000)]
        hellos.append(hello.replace(b'h"', b"x" * 500_000 + b'"') % 1)
        for it in hellos:
            sock.sendall(b"PUB sbus.j.lamps %d\r\n%b\r\n" % (len(it), it))
        wait_until(lambda: linked.bad() > before)
    assert len(linked.bridge.status()["links"][0]["peers"]) == 1_024


@pytest.mark.parametrize(
    ("origin", "header", "error"),
    [
        ("v", b"0 ab 1 v = = =", "it speaks version '0' of the bridges' protocol, and this one 1"),
        ("w", b"1 nonsense", "its header is no envelope: '1 nonsense'"),
    ],
)
def test_a_bridge_of_another_version(
    linked: Linked, origin: str, header: bytes, error: str
) -> None:
    for _ in range(2):
        publish(linked.server, f"sbus.m.lamps.{origin}.lamps.1".encode(), header)
    wait_for(linked.bridge, error)
    assert origin not in [it["origin"] for it in linked.bridge.status()["origins"]]


def test_a_key_that_is_none_of_the_channel_is_refused(linked: Linked) -> None:
    server, bridge = linked
    with bridge.bus.connect() as client:
        send(client, b"SUB *", b"SUB */", b"SUB bridge/")
        keys = ["doors.1", "bridge.lost.lamps", "!.x", "lamps.1"]
        for number, key in enumerate(keys, 1):
            publish(server, f"sbus.m.lamps.k.{key}".encode(), b"1 ab %d k = = =" % number)
        assert client.receive() == b"MSG lamps/1\0x"
    assert bridge.status()["channels"][0]["refused"] == 3


def test_a_message_that_the_local_bus_refuses_is_reported(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\ndeny = ["publish"]\nkeys = ["lamps/denied"]\n')
    with (
        nats_server(tmp_path) as server,
        running_bus(tmp_path, "--config", str(rules)) as bus,
        running_bridge(bus, tmp_path, CONFIG.format(url=server.url, origin="a", more="")) as bridge,
    ):
        bridge.wait_up()
        publish(server, b"sbus.m.lamps.b.lamps.denied", b"1 ab 1 b = = =")
        wait_for(bridge, "the local bus refused a message: you may not publish under this key")


def publish(server: NatsServer, subject: bytes, header: bytes) -> None:
    """As any client of NATS does."""
    headers = b"NATS/1.0\r\nSbus: %b\r\n\r\n" % header
    packet = b"HPUB %b %d %d\r\n%bx\r\n" % (subject, len(headers), len(headers) + 1, headers)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b'CONNECT {"headers": true, "verbose": false}\r\n' + packet + b"PING\r\n")
        reply = b""
        while b"PONG\r\n" not in reply:
            reply += sock.recv(4096)
