"""Watching the messages of a bus: each once, with its recipients right to the client, and
no client waits for a watcher.

How many recipients a message had is known from what the clients themselves received.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sbus.client.admin import AdminConnection, AdminError
from sbus.client.message_joiner import MissedItems, MonitoredMessage
from sbus.client.streams import MessageStream
from tests.support.block_scene import SOFT, Scenes, receive_all
from tests.support.bus import Bus, running_bus
from tests.support.processes import (
    clients_on_each,
    descriptors_at_rest,
    is_replaced,
    several_clients,
    wait_for_descriptors,
    worker_pids,
)
from tests.support.raw_client import RawClient
from tests.support.secrets import OWN, secret
from tests.support.streams import TIMEOUT_S, messages_of, messages_to_end
from tests.support.threads import run_together, wait_until
from tests.support.traffic import Stream, flowing

PATTERNS = (b"", b"a/", b"a/*", b"a/b", b"c/*/e", b"c/", b"nothing/here")
KEYS = (b"a/b", b"a/c", b"c/d/e", b"c/d", b"z")
ECHO_OFF = b"echo/off"


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with running_bus(tmp_path_factory.mktemp("bus"), workers=3) as running:
        yield running


def recipients_of(clients: list[RawClient]) -> Counter[bytes]:
    """How many of these clients have received each message, by payload; all are published."""
    received: Counter[bytes] = Counter()
    for client in clients:
        received.update(packet.partition(b"\0")[2] for packet in client.sync())
    return received


# -- what is shown ---------------------------------------------------------------------------------
def test_every_message_is_shown_once_with_its_recipients(bus: Bus) -> None:
    rng = random.Random(1)
    with several_clients(bus, 9) as clients, messages_of(bus, payload=True) as stream:
        for client in clients:
            if rng.random() < 0.3:
                client.control(ECHO_OFF)
            for pattern in rng.sample(PATTERNS, rng.randrange(4)):
                client.sub(pattern)
            client.sync()
        sent = [(rng.choice(KEYS), b"%d" % n) for n in range(300)]
        shares = [(client, sent[number::9]) for number, client in enumerate(clients)]

        def publish(client: RawClient, share: list[tuple[bytes, bytes]]) -> None:
            for key, payload in share:
                client.pub(key, payload)

        run_together(*(lambda c=c, share=share: publish(c, share) for c, share in shares))
        early = Counter[bytes]()
        for client in clients:
            early.update(packet.partition(b"\0")[2] for packet in client.sync())
        received = early + recipients_of(clients)
        found = messages_to_end(stream, clients[0])
    assert sorted((one.key.encode(), one.payload) for one in found) == sorted(sent)
    assert {one.payload: one.recipients for one in found} == {
        payload: received[payload] for _, payload in sent
    }
    assert [one.order for one in found] == sorted(one.order for one in found)
    for _, share in shares:
        own = [payload for _, payload in share]
        shown = [one.payload for one in found]
        assert [payload for payload in shown if payload in own] == own


def test_large_payloads_are_shown_whole(bus: Bus) -> None:
    rng = random.Random(5)
    sizes = [0, 49_151, 49_152, 49_153, 100_000, 400_000, 5, 300_000]
    payloads = [rng.randbytes(size) for size in sizes]
    with bus.connect() as client, messages_of(bus, payload=True) as stream:
        for payload in payloads:
            client.pub(b"large", payload)
            (one,) = stream.receive_many(TIMEOUT_S)
            assert isinstance(one, MonitoredMessage)
            assert one.payload == payload
            assert one.size == len(payload)


def test_a_stream_that_begins_during_traffic_knows_all_recipients(bus: Bus) -> None:
    with several_clients(bus, 6) as clients:
        pairs = [(0, 4), (1, 5), (2, 3)]
        with flowing(*(Stream(clients[one], clients[two], b"%d" % one) for one, two in pairs)):
            for _ in range(5):
                with messages_of(bus) as stream:
                    found: list[MonitoredMessage | MissedItems] = []
                    while len(found) < 20:
                        found += stream.receive_many(TIMEOUT_S)
                    assert {
                        one.recipients for one in found if not isinstance(one, MissedItems)
                    } == {1}


# -- secret messages -------------------------------------------------------------------------------
def test_of_secret_messages_only_the_keys_are_shown(bus: Bus) -> None:
    own, anybody, another = secret(OWN), secret((b"", b"", b"")), secret((b"", b"", b"1"))
    with several_clients(bus, 4) as clients, messages_of(bus, payload=True) as stream:
        for client in clients[1:]:
            client.sub(b"!/cred////")
            client.sync()
        for key in (own, anybody, another):
            clients[0].pub(key, b"secret")
        found = messages_to_end(stream, clients[0])
    assert [one.key.encode() for one in found] == [own, anybody, another]
    assert [(one.size, one.payload) for one in found] == [(None, None)] * 3
    assert [one.recipients for one in found] == [3, 3, 0]


# -- messages that wait ----------------------------------------------------------------------------
def test_a_message_that_is_held_is_shown_once(scenes: Scenes) -> None:
    with scenes.scene(2, 1) as scene, messages_of(scene.bus, b"k", b"the/end") as stream:
        scene.subscribe(scene.slow, *SOFT)
        sent = scene.hold()
        receive_all(scene.slow, sent)
        scene.publisher.whoami()
        found = messages_to_end(stream, scene.publisher)
    assert [one.recipients for one in found] == [1] * sent


# -- a watcher that does not read ------------------------------------------------------------------
def test_a_slow_watcher_delays_no_client_and_learns_what_it_missed(bus: Bus) -> None:
    count = 600
    with several_clients(bus, 3) as clients, messages_of(bus, payload=True) as stream:
        run_together(*(lambda c=c: _publish(c, count) for c in clients))
        found: list[MonitoredMessage | MissedItems] = []
        while sum(1 if isinstance(o, MonitoredMessage) else o.count for o in found) < 3 * count:
            more = stream.receive_many(TIMEOUT_S)
            assert more, "some are neither shown nor missed"
            found += more
        shown = [one for one in found if isinstance(one, MonitoredMessage)]
        missed = [one.count for one in found if isinstance(one, MissedItems)]
        assert len(shown) + sum(missed) == 3 * count
        assert shown
        assert missed
        # There is room again, and so nothing is missed any more.
        clients[0].pub(b"a", b"again")
        (again,) = messages_to_end(stream, clients[0])
        assert (again.payload, again.recipients) == (b"again", 0)


def _publish(client: RawClient, count: int) -> None:
    for _ in range(count):
        client.pub(b"a", bytes(20_000))
    client.sync()


# -- ends ------------------------------------------------------------------------------------------
def test_a_stream_continues_when_a_worker_dies(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=2) as bus, clients_on_each(bus, 2, 2) as clients:
        clients[0][0].sub(b"a")
        clients[0][0].sync()
        with messages_of(bus) as stream:
            dead = worker_pids(bus)[1]
            os.kill(dead, signal.SIGKILL)
            wait_until(lambda: is_replaced(bus, 1, dead), "the worker is replaced")
            inherited = clients[1][0]
            inherited.sub(b"a")
            inherited.sync()
            inherited.pub(b"a", b"12")
            clients[0][1].pub(b"a", b"3")
            inherited.sync()
            clients[0][1].sync()
            found = messages_to_end(stream, inherited)
    assert sorted((one.size, one.recipients, one.worker) for one in found) == [(1, 2, 0), (2, 2, 1)]


def test_a_watcher_that_leaves_is_forgotten(tmp_path: Path) -> None:
    with running_bus(tmp_path, "--limit", "watchers_max=2", workers=2) as bus:
        at_rest = descriptors_at_rest(bus)
        for _ in range(3):
            with messages_of(bus), messages_of(bus), ExitStack() as stack:
                connection = stack.enter_context(AdminConnection(bus.address))
                with pytest.raises(AdminError, match="watchers_max") as refused:
                    MessageStream(connection)
                assert refused.value.code == "failed"
            wait_for_descriptors(bus, at_rest)


def test_an_impossible_watch_is_refused(bus: Bus) -> None:
    for pattern, why in ((b"!/x", "reserved"), (b"x" * 5000, "pattern-too-long")):
        with AdminConnection(bus.address) as connection:
            with pytest.raises(AdminError, match=why) as refused:
                MessageStream(connection, [pattern])
            assert refused.value.code == "bad-request"
            assert MessageStream(connection, [b"x"]).unanswered == []
