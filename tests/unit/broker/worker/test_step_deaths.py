"""A worker that dies at any store of the compiled step leaves the shared memory valid.

A child process makes the step and ends before its first store; another one, with another shared
memory, before its second store, and so on. After each death another worker goes on.
"""

from contextlib import closing
from itertools import groupby

from sbus.limits import Limits
from sbus.shared.shared_memory import ALIVE
from sbus.shared.worker_statistics import MESSAGES_IN, counters_of
from tests.fuzz.one_process_bus import OneProcessBus, one_process_bus
from tests.support import compiled_step
from tests.support.dying_child import dies
from tests.support.needs import needs_compiled_step
from tests.unit.broker.worker.step_scene import Scene

pytestmark = needs_compiled_step

STORES_MAX = 200
LIMITS = Limits(log_bytes=8 * 1024 * 1024, table_bytes=1024 * 1024)
FIRST, LATER = b"MSG both/1\0of the worker that dies", b"MSG both/1\0of another worker"


def scene_with_readers() -> Scene:
    """A client of the first worker and one of the second are to receive both messages."""
    scene = Scene(compiled=True)
    for client in (scene.clients[0], scene.clients[3]):
        scene.subscribe(client, b"both/")
    # From here on the first worker has the route, and what the second one subscribed to.
    scene.clients[1].send([b"MSG both/1\0"])
    scene.turn(scene.clients[1])
    scene.walk(1)
    scene.everybody_reads()
    scene.clients[3].received.clear()
    return scene


def publish_until_store(scene: Scene, store: int) -> bool:
    """Have a child publish a message and end before this store; False if it made fewer."""
    publisher = scene.clients[1]
    publisher.send([FIRST])

    def act() -> None:
        compiled_step.die_at_store(store)
        scene.turn(publisher)

    return dies(scene.memory.fd, scene.memory.lock.fd, act)


def received_after_a_death(scene: Scene) -> list[bytes]:
    """What the client of the second worker receives, when that has published once more."""
    reader = scene.clients[3]
    log = scene.sequencers[1]._log
    with scene.memory.lock as words:
        log.check_invariants(words)
        log.reap(words, 0)
        assert not words[ALIVE] & 1
    reader.send([LATER])
    scene.turn(reader)
    reader.read(10)
    with scene.memory.lock as words:
        log.check_invariants(words)
    return reader.received


def test_a_message_has_its_place_from_one_store_on() -> None:
    outcomes: list[list[bytes]] = []
    has_died = True
    while has_died and len(outcomes) < STORES_MAX:
        with closing(scene_with_readers()) as scene:
            has_died = publish_until_store(scene, len(outcomes))
            outcomes.append(received_after_a_death(scene))
    assert not has_died
    assert len(outcomes) > 10, "the copy of the words, the block, its ends, accounts, the selector"
    before = outcomes.index([FIRST, LATER])
    assert outcomes == [[LATER]] * before + [[FIRST, LATER]] * (len(outcomes) - before)


def test_what_a_lone_client_changes_is_changed_by_single_stores() -> None:
    """Its worker serves it in the poll: it notes the client, and shares its statistics at last. A
    change that is no store would come with another one."""
    seen: list[tuple[int, int]] = []
    has_died = True
    while has_died and len(seen) < STORES_MAX:
        with one_process_bus("slash", LIMITS) as bus:
            client = bus.connect(0)
            for packet in (b"SUB a", b"MSG a\0first"):
                client.send(packet)
            bus.settle()
            client.send(b"MSG a\0second")

            def act(bus: OneProcessBus = bus) -> None:
                compiled_step.die_at_store(len(seen))
                assert bus.stepped[0].poll(0.01) == []

            has_died = dies(bus.memory.fd, bus.memory.lock.fd, act)
            published = counters_of(bus.memory.statistics, 0)[MESSAGES_IN]
            seen.append((bus.memory.served_clients[0], published))
    assert not has_died
    number = client.number
    assert [seen for seen, _ in groupby(seen)] == [(0, 1), (number, 1), (0, 1), (0, 2)]


def test_a_packet_that_was_read_is_done_or_told_as_lost() -> None:
    """Packets are pending before they are read, so that a successor knows of them."""
    seen: list[list[bytes]] = []
    has_died = True
    while has_died and len(seen) < STORES_MAX:
        with one_process_bus("slash", LIMITS) as bus:
            client = bus.connect(0)
            for packet in (b"CMSG !/notices/on", b"SUB a", b"MSG a\0first"):
                client.send(packet)
            bus.settle()
            client.read()
            client.send(b"MSG a\0second")

            def act(bus: OneProcessBus = bus) -> None:
                compiled_step.die_at_store(len(seen))
                while bus.stepped[0].is_awake():
                    pass

            has_died = dies(bus.memory.fd, bus.memory.lock.fd, act)
            bus.replace(0)
            bus.settle()
            seen.append([packet.partition(b" ")[2][:20] for packet in client.read()])
    assert not has_died
    assert all(seen), seen
