"""The compiled step does exactly what Python does, and survives what no other would send."""

import select
import socket
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.broker.delivery import fan_out_times
from sbus.broker.worker import ordinary_step
from sbus.limits import Limits
from sbus.protocol.controls import BacklogOrder, Hard, Soft
from sbus.shared import log_share
from sbus.shared.accounts import BUS
from sbus.shared.log_block import Publisher
from sbus.shared.shared_memory import (
    LOG_ENTRY_BYTES,
    LOG_SHARE,
    LOG_WINDOW,
    SLEEPING,
    WAITING,
)
from sbus.shared.worker_statistics import DROPPED_AT, MESSAGES_IN, counters_of
from tests.fuzz.one_process_bus import OneProcessBus, Peer, SteppedWorker, one_process_bus
from tests.support import compiled_step
from tests.support.needs import needs_compiled_step
from tests.unit.broker.worker.step_scene import (
    SUBORDINATE,
    UIDS,
    Clock,
    Scene,
    stopped_clock,
)
from tests.unit.shared.memories import log_block_of

pytestmark = needs_compiled_step

SECRET = b"!/cred/1/%d/1/x" % UIDS[0]
"""For the second and the fourth client, as of a process that the bus has to look at."""
KEYS = [b"a/b", b"a/c", b"x", b"far/1", b"both/2", SECRET]
PATTERNS = [*KEYS, b"a/", b"far/*", b"both/", b""]

Act = Callable[[Scene, Clock], object]


def message(key: bytes, size: int) -> bytes:
    return b"MSG %b\0%b" % (key, b"." * size)


# -- random scripts --------------------------------------------------------------------------------
_messages = st.builds(message, st.sampled_from(KEYS), st.integers(0, 40))
_oddities = st.sampled_from(
    [
        *(b"", b"M", b"MSG", b"MSG ", b"MSG a/b", b"MSG \0", b"msg a/b\0", b"MSG a/b\0\0x"),
        *(b"SUB a/b", b"UNSUB x", b"CMSG !/cred/whoami", b"MSG unknown/key\0y", b"MSG !/x\0"),
        *(message(b"a/b", 280), message(b"a/b", 292), message(b"a/b", 300), message(b"x", 250)),
    ]
)
_packets = st.lists(st.one_of(_messages, _messages, _messages, _oddities), max_size=12)
_clients = st.integers(0, 4)
_words = st.one_of(
    st.tuples(st.just(None), st.sampled_from([SLEEPING, WAITING]), st.integers(0, 7)),
    st.tuples(st.integers(1, 2), st.just(LOG_WINDOW), st.sampled_from([128, 1_000, 20_000])),
    st.tuples(st.integers(1, 2), st.just(LOG_ENTRY_BYTES), st.sampled_from([0, 300, 5_000])),
    st.tuples(st.integers(1, 2), st.just(LOG_SHARE), st.integers(0, 300)),
)
_choices = st.sampled_from([*Soft, *Hard, *BacklogOrder, 0, 1, 20])
_times_ns = st.integers(0, 20_000_000)


def publish(client: int, packets: list[bytes]) -> Act:
    def act(scene: Scene, _clock: Clock) -> None:
        scene.clients[client].send(packets)
        scene.turn(scene.clients[client])

    return act


def publish_with_descriptor(client: int, before: list[bytes], packet: bytes) -> Act:
    """One packet that has a descriptor, behind some that have none."""

    def act(scene: Scene, _clock: Clock) -> None:
        scene.clients[client].send(before)
        scene.clients[client].send_with_descriptor(packet)
        scene.clients[client].send(before)
        scene.turn(scene.clients[client])

    return act


def on_client(
    act: Callable[..., object], *arguments: st.SearchStrategy[Any]
) -> st.SearchStrategy[Act]:
    """What a scene does with one of its clients."""
    return st.builds(
        lambda number, *given: lambda scene, _: act(scene, scene.clients[number], *given),
        _clients,
        *arguments,
    )


_common_acts = st.one_of(
    st.builds(publish, _clients, st.lists(_messages, min_size=1, max_size=8)),
    st.just(lambda scene, _: scene.everybody_reads()),
    st.builds(lambda worker: lambda scene, _: scene.walk(worker), st.integers(0, 2)),
    st.builds(lambda ns: lambda _, clock: clock.advance(ns), st.integers(0, 80_000_000)),
    st.builds(lambda given: lambda scene, _: scene.poke(*given), _words),
)
_rare_acts = st.one_of(
    st.builds(publish, _clients, _packets),
    st.builds(publish_with_descriptor, _clients, _packets, st.one_of(_messages, _oddities)),
    on_client(Scene.turn),
    on_client(lambda _, client, count: client.read(count), st.integers(1, 20)),
    on_client(Scene.send_backlog),
    on_client(Scene.subscribe, st.sampled_from(PATTERNS)),
    on_client(Scene.unsubscribe, st.sampled_from(PATTERNS)),
    on_client(Scene.choose, _choices),
    on_client(Scene.send_slowly, _times_ns),
    on_client(Scene.take_time, _times_ns),
    st.builds(
        lambda worker, ns: lambda scene, _: scene.note_sleep(worker, ns),
        st.integers(0, 2),
        _times_ns,
    ),
    on_client(Scene.enable_backpressure),
    on_client(lambda scene, client: (scene.stall(client), *map(scene.learn, KEYS))),
    st.builds(lambda users: lambda scene, _: scene.wait_for_first(users), st.integers(0, 3)),
    on_client(lambda _, client, echo: setattr(client.session, "echo", echo), st.booleans()),
    on_client(lambda _, client, wants: client.tell_sender(wants), st.booleans()),
    on_client(lambda _, client: client.peer.close()),
    st.builds(lambda worker: lambda scene, _: scene.barrier(worker), st.integers(0, 2)),
    st.builds(lambda key: lambda scene, _: scene.learn(key), st.sampled_from(KEYS)),
)


_acts_of_full_clients = st.one_of(
    st.builds(publish, st.sampled_from([0, 3]), st.lists(_messages, min_size=6, max_size=12)),
    st.builds(publish, st.just(1), st.lists(_messages, min_size=6, max_size=12)),
    st.builds(lambda worker: lambda scene, _: scene.walk(worker), st.integers(0, 2)),
    on_client(lambda _, client, count: client.read(count), st.integers(1, 20)),
    on_client(Scene.send_backlog),
    on_client(Scene.choose, _choices),
    on_client(Scene.enable_backpressure),
    on_client(Scene.take_time, st.sampled_from([3_000_000, 9_000_000])),
)


def run(acts: list[Act], rate: int, soft: Soft, *, compiled: bool) -> list[dict[str, Any]]:
    """What can be seen after each of these acts."""
    with stopped_clock() as clock:
        scene = Scene(compiled=compiled, rate=rate, clock=clock)
        try:
            for client, pattern in enumerate([b"a/", b"", b"both/", b"both/", b"far/*"]):
                scene.subscribe(scene.clients[client], pattern)
                scene.choose(scene.clients[client], soft)
            for key in KEYS:
                scene.learn(key)
            seen = []
            for act in acts:
                act(scene, clock)
                seen.append(scene.observe())
            return seen
        finally:
            scene.close()


@settings(max_examples=3 * settings().max_examples)
@given(
    st.lists(st.one_of(_common_acts, _common_acts, _rare_acts), min_size=10, max_size=60),
    st.sampled_from([200, 1_000_000]),
    st.sampled_from(Soft),
)
def test_both_steps_do_the_same(acts: list[Act], rate: int, soft: Soft) -> None:
    assert run(acts, rate, soft, compiled=True) == run(acts, rate, soft, compiled=False)


@given(st.lists(_acts_of_full_clients, min_size=10, max_size=40), st.sampled_from(Soft))
def test_both_steps_drop_the_same(acts: list[Act], soft: Soft) -> None:
    rate = 1_000_000
    assert run(acts, rate, soft, compiled=True) == run(acts, rate, soft, compiled=False)


@pytest.mark.parametrize("key", [b"a/b", SECRET])
def test_both_steps_leave_out_the_same(key: bytes) -> None:
    """The first client publishes, the others receive; only the second's user is another one."""
    send = publish(0, [message(key, size) for size in range(3)])
    acts: list[Act] = [
        lambda scene, _: scene.subscribe(scene.clients[1], key),
        *(lambda scene, _: scene.subscribe(scene.clients[2], key), send),
        *(lambda scene, _: scene.take_time(scene.clients[1], 16_000_000), send, send),
        *(lambda scene, _: scene.note_sleep(scene.clients[1].worker, 10_000_000), send),
    ]
    seen = [run(acts, 1_000_000, Soft.QUEUE, compiled=compiled) for compiled in (True, False)]
    assert seen[0] == seen[1]
    clients = (1,) if key == SECRET else (1, 2)
    accepted = [[it["clients"][client]["outbox"].accepted for it in seen[0]] for client in clients]
    assert accepted == [[0, 0, 3, 3, 6, 9, 9, 12]] * len(clients)
    assert [it["clients"][2]["outbox"].dropped for it in seen[0]] == [0] * 8
    assert [it["clients"][1]["dropped"].get("fan-out", 0) for it in seen[0]] == [
        *(0, 0, 0, 0, 3, 6, 6, 6)
    ]
    assert seen[0][-1]["clients"][1]["flowing"] == (True, False, True)


def test_both_steps_end_a_batch_that_was_cut() -> None:
    """Only the message that is left for the next batch has a recipient here."""
    packets = [
        *[message(b"a/b", 0)] * 3,
        message(b"x", 0),
        message(SECRET, 0),
        message(b"far/1", 7),
    ]
    acts: list[Act] = [*(publish(0, [packet]) for packet in packets), publish(0, packets)]
    seen = [run(acts, 1_000_000, Soft.QUEUE, compiled=compiled) for compiled in (True, False)]
    assert seen[0] == seen[1]


def test_both_steps_spare_publishers_that_may_be_held() -> None:
    """The second client drops what others send, and holds its own publishers."""
    floods = [publish(0, [message(b"x", 0)] * 8) for _ in range(6)]
    acts: list[Act] = [lambda scene, _: scene.enable_backpressure(scene.clients[1]), *floods]
    acts.append(publish(1, [message(b"x", 0)]))
    seen = [run(acts, 1_000_000, Soft.BLOCK, compiled=compiled) for compiled in (True, False)]
    assert seen[0] == seen[1]
    dropped, kept = ([it["clients"][1]["outbox"] for it in seen[0]][at] for at in (-2, -1))
    assert dropped.dropped > 0
    assert (kept.backlog, kept.dropped) == (1, dropped.dropped)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_walk_is_charged_to_the_owner_of_a_subordinate_id(compiled: bool) -> None:
    """The first and the fifth client are one user's, under different ids."""
    with stopped_clock() as clock:
        scene = Scene(compiled=compiled)
        try:
            owner, publisher = scene.clients[0].session, scene.clients[4].session
            assert publisher.uid == owner.uid + SUBORDINATE
            scene.subscribe(scene.clients[1], b"x")
            scene.learn(b"x")
            publish(4, [message(b"x", 0)] * 3)(scene, clock)
            scene.walk(0)
            assert scene.costs[-1] == [(owner.account_place, 6)]
            walker = scene.sequencers[0]._walker
            assert owner.account.log_share._words[log_share._PRICE] == 0
            walker._note_prices(0.001)
            assert owner.account.log_share._words[log_share._PRICE] > 0
        finally:
            scene.close()


# -- what stays ordinary ---------------------------------------------------------------------------
def published_in_c(scene: Scene, clock: Clock, client: int, packets: list[bytes]) -> int:
    """How many of these messages the compiled step itself publishes at once."""
    session = scene.clients[client].session
    scene.clients[client].send(packets)
    before = session.messages_in
    scene.sequencers[0].serve(session, 1, 1_000)
    published = session.messages_in - before
    scene.turn(scene.clients[client])
    assert session.messages_in - before == len(packets)
    return published


@pytest.fixture
def scene() -> Iterator[tuple[Scene, Clock]]:
    with stopped_clock() as clock:
        opened = Scene(compiled=True)
        yield opened, clock
        opened.close()


def test_a_stalled_client_concerns_those_alone_who_may_be_held(scene: tuple[Scene, Clock]) -> None:
    """The second client, of another user than the first and the third, has no room for `x`."""
    opened, clock = scene
    opened.subscribe(opened.clients[1], b"x")
    opened.enable_backpressure(opened.clients[1])
    packets = [message(key, 0) for key in (b"a/b", b"x", b"a/c", b"x")]
    publish(0, packets)(opened, clock)  # the worker reads the table
    for key in KEYS:
        opened.learn(key)
    backpressure = opened.clients[1].session.backpressure
    assert backpressure is not None
    backpressure.stall()
    assert published_in_c(opened, clock, 0, packets) == 4
    own = opened.clients[1].session
    opened.clients[1].send(packets)
    opened.sequencers[0].serve(own, 1, 1_000)
    assert own.messages_in == 0
    opened.turn(opened.clients[1])
    assert own.messages_in == 1, "the next one is held"


def test_messages_before_an_unknown_key_are_ordinary(scene: tuple[Scene, Clock]) -> None:
    """Those from that key on are one batch."""
    opened, clock = scene
    publish(0, [message(b"x", 0)])(opened, clock)  # the worker reads the table
    packets = [message(key, 0) for key in (b"x", b"x", b"new/1", b"x", b"new/2")]
    assert published_in_c(opened, clock, 0, packets) == 2
    assert published_in_c(opened, clock, 0, packets) == len(packets), "all keys are known now"


# -- layouts ---------------------------------------------------------------------------------------
def test_a_step_with_any_other_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sbus.compiled._step import LAYOUT

    assert LAYOUT["worker_statistics.DROPPED_FAN_OUT"] == DROPPED_AT["fan-out"]
    for name, place in LAYOUT.items():
        module, _, constant = name.partition(".")
        with monkeypatch.context() as patched:
            patched.setattr(f"sbus.shared.{module}.{constant}", place + 1)
            with pytest.raises(ImportError, match=rf"{name} = {place}, not {place + 1}"):
                ordinary_step._check_layout(LAYOUT)


# -- misuse, and what two pairs share --------------------------------------------------------------
def test_a_step_that_was_not_made_refuses_to_work() -> None:
    """In a process of its own, which a mistake would end."""
    program = """
from sbus.compiled._step import OrdinaryStep
step = OrdinaryStep.__new__(OrdinaryStep)
for call in (
    lambda: step.deliver([], 0), lambda: step.walk(1, {}, {}, 1),
    lambda: step.walk_piece(bytes(64), 0, {}, {}), lambda: step.poll(0, {}, 0.0, 1),
):
    try:
        call()
    except RuntimeError as error:
        assert str(error) == "this OrdinaryStep is not initialized"
    else:
        raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_key_that_its_packet_does_not_have_is_refused(scene: tuple[Scene, Clock]) -> None:
    opened, _ = scene
    route = opened.routers[0].look_up(b"x")
    with pytest.raises(ValueError, match="a key is longer than its packet"):
        opened.sequencers[0]._step.deliver([(b"MSG x\0", bytes(100), route)], 0)


def test_a_message_at_place_0_is_told_with_its_own_sender(scene: tuple[Scene, Clock]) -> None:
    opened, _ = scene
    recipient = opened.clients[1]
    recipient.tell_sender(True)
    opened.subscribe(recipient, b"x")
    packet, route = message(b"x", 0), opened.routers[0].look_up(b"x")
    for client in (7, 8):
        opened.contexts[0].origin.set(Publisher(client, 1, 2, 3, 4), 0)
        opened.sequencers[0]._step.deliver([(packet, b"x", route)], 0)
    recipient.read(2)
    assert recipient.received == [b"CMSG !/from\x000 %d 2 1 3 %b" % (it, packet) for it in (7, 8)]


def test_a_pair_is_charged_before_another_one_may_take_its_place() -> None:
    with stopped_clock() as clock:
        scene = Scene(compiled=True, clock=clock)
        words = scene.contexts[0].fan_out_times.words
        words[fan_out_times._FACTOR] = 0  # all pairs have one place
        scene.clients[2].session.outbox.account_place = BUS
        for client in scene.clients[1:3]:
            scene.subscribe(client, b"x")
        publish(0, [message(b"x", 0)])(scene, clock)  # it reads the table
        pair_at = fan_out_times._FIRST_PAIR
        words[pair_at : pair_at + 4] = array("Q", bytes(32))
        for at in range(fan_out_times._USED_NS, pair_at):
            words[at] = 1 << 62  # time has paid all that it can
        try:
            compiled_step.let_stores_take(500_000)
            publish(0, [message(b"x", 0)])(scene, clock)
        finally:
            compiled_step.let_stores_take(0)
        first = words[pair_at + fan_out_times._PAIR]
        scene.close()
        assert (first & 0xFFFF_FFFF) - 1 == scene.clients[1].session.account_place


def test_deliveries_that_are_timed_together_count_no_more_than_one() -> None:
    """The host has taken the processor away among them, which is nobody's fault."""
    with stopped_clock() as clock:
        scene = Scene(compiled=True, clock=clock)
        scene.subscribe(scene.clients[1], b"x")
        publish(0, [message(b"x", 0)])(scene, clock)  # it reads the table
        try:
            compiled_step.let_stores_take(500_000)
            publish(0, [message(b"x", 0)] * 4)(scene, clock)
        finally:
            compiled_step.let_stores_take(0)
        fan_outs: Any = scene.observe()["fan-outs"]
        scene.close()
        ((_, owed_ns, is_spent),) = fan_outs[0][1]
        assert (owed_ns, is_spent) == (2_500_000, 0)


# -- damaged log blocks ----------------------------------------------------------------------------
_entries = st.lists(st.tuples(st.sampled_from([1, 2, 3]), _messages, st.just(3)), min_size=1)
_damage = st.lists(st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=8)), max_size=3)


@given(_entries, _damage, st.integers(0, 200))
def test_no_log_block_leads_astray(
    entries: list[tuple[int, bytes, int]], damage: list[tuple[int, bytes]], cut: int
) -> None:
    """The bus alone writes the log; the step relies on none of its lengths all the same."""
    piece = bytearray(log_block_of(7, 1000, entries).data)
    for at, junk in damage:
        piece[at : at + len(junk)] = junk
    del piece[len(piece) - cut :]
    with stopped_clock():
        scene = Scene(compiled=True)
        try:
            for key in KEYS:
                scene.learn(key)
            assert 0 <= scene.sequencers[0]._step.walk_piece(bytes(piece), 0, {}, {}) <= len(piece)
            at = scene.memory.log_offset
            scene.memory.map[at : at + len(piece)] = bytes(piece)
            scene.sequencers[0]._log.cursor = 0
            scene.sequencers[0]._step.walk(len(piece), {}, {}, 1_000)
        finally:
            scene.close()


# -- a lone client ---------------------------------------------------------------------------------
@pytest.fixture
def bus() -> Iterator[OneProcessBus]:
    with one_process_bus("slash", Limits(batch_packets_max=4)) as opened:
        yield opened


def connected(bus: OneProcessBus, *packets: bytes) -> Peer:
    """A client of the first worker that has sent this, and is at rest."""
    peer = bus.connect(0)
    for packet in (*packets, b"MSG k\0first"):
        peer.send(packet)
    bus.settle()
    peer.read()
    return peer


def rest(worker: SteppedWorker) -> None:
    """Give ticks until a worker would sleep."""
    while worker.is_awake() or worker.has_ready():
        pass


def messages_shared(bus: OneProcessBus) -> int:
    """Messages published by clients of the first worker, as other processes see it."""
    return counters_of(bus.memory.statistics, 0)[MESSAGES_IN]


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_a_lone_client_is_served_while_the_worker_sleeps(bus: OneProcessBus, count: int) -> None:
    peer = connected(bus, b"SUB k")
    before = messages_shared(bus)
    sent = [b"MSG k\0%d" % number for number in range(count)]
    for packet in sent:
        peer.send(packet)
    assert bus.stepped[0].poll(0.01) == []
    assert peer.read() == sent
    assert messages_shared(bus) - before == count


@pytest.mark.parametrize(("seconds_max", "is_done"), [(0.01, True), (1e-10, False)])
def test_a_lone_client_goes_on_after_a_quantum(seconds_max: float, is_done: bool) -> None:
    """Until the worker has to wake, which is at once if that is in less than a nanosecond."""
    with one_process_bus("slash", Limits(quantum_units=4)) as bus:
        peer = connected(bus, b"SUB k")
        sent = [b"MSG k\0%d" % number for number in range(9)]
        for packet in sent:
            peer.send(packet)
        assert (bus.stepped[0].poll(seconds_max) == []) is is_done
        assert (peer.read() == sent) is is_done


@pytest.mark.parametrize("packet", [b"CMSG !/cred/whoami", b"SUB x", b"MSG new\0", b"", b"x"])
def test_what_is_not_ordinary_gets_a_turn(bus: OneProcessBus, packet: bytes) -> None:
    peer = connected(bus)
    session = bus.workers[0].sessions[peer.number]
    peer.send(b"MSG k\0")
    peer.send(packet)
    assert bus.stepped[0].poll(0.01) == [(session.fd, select.EPOLLIN)]
    assert session.packets[session.done :][-1:] == [packet]


@pytest.mark.parametrize("before", [[], [b"MSG k\0before"]], ids=["first", "behind another"])
def test_a_packet_with_descriptors_ends_its_connection(
    bus: OneProcessBus, before: list[bytes]
) -> None:
    """Also of a client that is served while the worker sleeps; what came before it is done."""
    peer, other = connected(bus, b"SUB k"), connected(bus, b"SUB k")
    for packet in before:
        peer.send(packet)
    socket.send_fds(peer.sock, [b"MSG k\0with"], [peer.sock.fileno()])
    for ready in bus.stepped[0].poll(0.01):
        bus.workers[0].sessions.on_ready(*ready)
    bus.settle()
    assert bus.workers[0].sessions.find(peer.number) is None
    assert other.read() == before


def test_two_ready_clients_get_turns(bus: OneProcessBus) -> None:
    peers = [connected(bus), connected(bus)]
    for peer in peers:
        peer.send(b"MSG k\0")
    ready = bus.stepped[0].poll(0.01)
    assert {fd for fd, _ in ready} == {bus.workers[0].sessions[it.number].fd for it in peers}


@pytest.mark.parametrize("reason", ["leaving", "quiescing", "watched", "waiting"])
def test_a_client_that_must_not_be_read_is_left_alone(bus: OneProcessBus, reason: str) -> None:
    peer = connected(bus)
    parts = bus.workers[0]
    if reason == "leaving":
        parts.sessions[peer.number].is_at_rest = False
    elif reason == "quiescing":
        parts.machine._scheduler.quiesce()
    elif reason == "watched":
        parts.sequencer._monitor.start_sampling()
    else:
        parts.wait_queue.waiting_bytes = 1
    peer.send(b"MSG k\0")
    read = parts.sessions[peer.number].bytes_in
    assert len(bus.stepped[0].poll(0.01)) == 1
    assert parts.sessions[peer.number].bytes_in == read


def test_a_client_that_has_not_read_a_reply_is_left_alone(bus: OneProcessBus) -> None:
    """A receipt comes when its last turn has long been over."""
    other, reader = connected(bus), bus.connect(1)
    peer, packet = bus.connect(0), message(b"own", 40_000)
    reader.send(b"SUB far")
    peer.send(b"SUB own")
    bus.settle()
    session, (here, there) = bus.workers[0].sessions[peer.number], bus.stepped
    peer.send(b"CMSG !/publish\0token\0far\0")
    rest(here)
    for _ in range(20):
        other.send(packet)
        rest(here)
    rest(there)
    rest(here)
    assert session.outbox.controls_waiting == 1
    peer.send(b"MSG k\0")
    read = session.bytes_in
    for ready in here.poll(0.01):
        bus.workers[0].sessions.on_ready(*ready)
    bus.settle()
    assert session.bytes_in == read
    received: list[bytes] = []
    while more := peer.read():
        received += more
        bus.settle()
    assert received == [packet] * 20 + [b"CMSG !/receipt\0token\x001 0 0"]
    assert session.bytes_in == read + len(b"MSG k\0")


@pytest.mark.usefixtures("real_time")
def test_a_flood_does_not_keep_the_worker_from_waking(bus: OneProcessBus) -> None:
    peer = connected(bus)
    for _ in range(20):
        peer.send(b"MSG k\0")
    assert bus.stepped[0].poll(1e-9)
    assert bus.stepped[0].has_ready() or bus.workers[0].sessions[peer.number].is_readable
