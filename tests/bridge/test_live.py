"""Two buses joined over NATS: what crosses, in which order, and what is told of losses."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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
from tests.support.bus import Bus, running_bus

pytestmark = needs_nats

LAMPS = """
[bridge]
origin = "{name}"
host = "host-{name}"
[channels.lamps]
patterns = ["lamps/", "odd*"]
{more}
[links.office]
servers = ["{url}"]
export = ["lamps"]
import = ["lamps"]
buffer_bytes_max = 20000
"""


class Pair:
    """Two buses, their bridges, and the server between them."""

    def __init__(self, server: NatsServer, buses: list[Bus], bridges: list[RunningBridge]) -> None:
        self.server = server
        self.a, self.b = buses
        self.bridge_a, self.bridge_b = bridges


@contextmanager
def joined(directory: Path, *, more: str = "") -> Iterator[Pair]:
    with ExitStack() as stack:
        server = stack.enter_context(nats_server(directory))
        buses, bridges = [], []
        for name in "ab":
            place = directory / name
            place.mkdir()
            buses.append(stack.enter_context(running_bus(place)))
            text = LAMPS.format(name=name, url=server.url, more=more)
            bridges.append(stack.enter_context(running_bridge(buses[-1], place, text)))
        for bridge in bridges:
            bridge.wait_importers("lamps")
        yield Pair(server, buses, bridges)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """For tests that leave it as it was."""
    with joined(tmp_path_factory.mktemp("pair")) as found:
        yield found


def test_messages_of_a_channel_cross_in_order_and_others_do_not(pair: Pair) -> None:
    keys = [b"lamps/1", b"lamps//", b"lamps/a b.c*>\xff", b"oddly", b"lamps/1"]
    before = pair.bridge_a.status()["channels"][0]["exported"]
    with pair.b.connect() as there, pair.a.connect() as here:
        send(there, b"SUB lamps/", b"SUB odd*", b"SUB secret/", b"SUB !/cred////x", b"SUB end")
        send(here, b"MSG secret/1\0no", b"MSG !/cred////x\0no")
        send(here, *(b"MSG %b\0%d" % (key, n) for n, key in enumerate(keys)))
        got = [there.receive() for _ in keys]
        assert got == [b"MSG %b\0%d" % (key, n) for n, key in enumerate(keys)]
        there.send(b"MSG end\0")
        assert there.receive() == b"MSG end\0"
        status = pair.bridge_a.status()
        assert status["channels"][0]["exported"] - before == len(keys)
        assert status["links"][0]["peers"] == ["host-b (b)"]


def test_who_has_published_is_told_as_a_claim(tmp_path: Path) -> None:
    with (
        joined(tmp_path, more="claims = true") as pair,
        pair.b.connect() as there,
        pair.a.connect() as here,
    ):
        send(there, b"SUB lamps/", b"SUB bridge/from/lamps")
        send(here, b"MSG lamps/1\0on")
        key, payload = there.receive().split(b"\0", 1)
        assert key == b"MSG bridge/from/lamps"
        claim = json.loads(payload)
        assert there.receive() == b"MSG lamps/1\0on"
    assert (claim["key"], claim["origin"], claim["host"]) == ("lamps/1", "a", "host-a")
    assert claim["uid"] == 0
    assert claim["program"]


def test_a_channel_that_nobody_imports_is_not_sent(tmp_path: Path) -> None:
    with joined(tmp_path) as pair, pair.a.connect() as here:
        pair.bridge_b.stop()
        wait_until(lambda: pair.bridge_a.status()["links"][0]["wanted"] == [])
        send(here, b"MSG lamps/1\0on")
        wait_until(lambda: pair.bridge_a.status()["channels"][0]["exported"] == 1)
        assert pair.bridge_a.status()["links"][0]["sent"] == 0


def test_what_is_given_up_while_nats_is_away_is_told_where_it_is_missing(tmp_path: Path) -> None:
    with joined(tmp_path) as pair, pair.b.connect() as there, pair.a.connect() as here:
        send(there, b"SUB lamps/", b"SUB bridge/lost/lamps")
        send(here, b"MSG lamps/1\0first")
        assert there.receive() == b"MSG lamps/1\x00first"
        pair.server.kill()
        for bridge in (pair.bridge_a, pair.bridge_b):
            wait_until(lambda errors=bridge.errors: "is down" in errors.read_text())  # type: ignore[misc]
        send(here, *[b"MSG lamps/1\0waits"] * 300)
        wait_until(lambda: pair.bridge_a.status()["channels"][0]["exported"] == 301)
        link = pair.bridge_a.status()["links"][0]
        given_up = link["given_up"]["lamps/"]
        assert 0 < given_up < 300
        assert link["waiting_bytes"] < 21_000
        pair.server.start()
        send(here, b"MSG lamps/1\0last")
        numbers, missing = 1, 0
        while numbers + missing < 302:
            packet = there.receive()
            if packet.startswith(b"MSG bridge/lost/lamps\0"):
                gap = json.loads(packet.partition(b"\0")[2])
                assert gap["first"] == numbers + missing + 1
                missing += gap["count"]
            else:
                numbers += 1
        # What waited may be lost as well: the importer may have come back later than the exporter.
        assert missing >= given_up


def test_a_second_bridge_of_the_same_user_is_refused(pair: Pair, tmp_path: Path) -> None:
    config = tmp_path / "second.toml"
    config.write_text(LAMPS.format(name="c", url=pair.server.url, more=""))
    done = pair.a.sbusctl("bridge", "--config", str(config))
    assert done.returncode == 1
    assert b"another bridge of this user serves the bus at" in done.stderr


def test_a_bridge_that_begins_anew_is_a_gap_of_unknown_size(tmp_path: Path) -> None:
    with joined(tmp_path) as pair, pair.b.connect() as there, pair.a.connect() as here:
        send(there, b"SUB lamps/", b"SUB bridge/lost/lamps")
        send(here, b"MSG lamps/1\0first")
        assert there.receive() == b"MSG lamps/1\0first"
        pair.bridge_a.process.kill()
        pair.bridge_a.process.wait()
        text = LAMPS.format(name="a", url=pair.server.url, more="")
        with running_bridge(pair.a, tmp_path / "a", text) as again:
            again.wait_importers("lamps")
            send(here, b"MSG lamps/1\0last")
            key, payload = there.receive().split(b"\0", 1)
            assert (key, json.loads(payload)["count"]) == (b"MSG bridge/lost/lamps", None)
            assert there.receive() == b"MSG lamps/1\0last"


def test_sbusctl_shows_the_bridge_and_explains_what_crosses(pair: Pair) -> None:
    shown = pair.a.sbusctl("bridges").stdout.decode()
    assert "origin a" in shown
    assert "host-b\\x20(b)" in shown
    exported = float(pair.bridge_a.status()["channels"][0]["exported"])
    with pair.a.connect() as everything:
        everything.sub(b"")
        everything.sync()
        crosses = pair.a.sbusctl("explain", "lamps/3").stdout.decode()
        assert "crosses link office in channel lamps, with the subject sbus.*.lamps.a.lamps.3." in (
            crosses
        )
        metrics = pair.a.sbusctl("metrics", "--bridge").stdout.decode()
        assert 'sbus_bridge_link_up{link="office"} 1.0' in metrics
        assert f'sbus_bridge_channel_exported_total{{channel="lamps"}} {exported}' in metrics
        assert "no channel that is exported" in pair.a.sbusctl("explain", "x").stdout.decode()
        assert everything.sync() == [], "the bridge was asked in secret messages"
