"""The machine of a worker: what one tick does, and when the worker may sleep.

Ticks are given one by one, to whole workers on real sockets. The clock stands still unless a test
moves it.
"""

import errno
import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest

from sbus.broker.delivery import fan_out_times
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.ipc.queries import ActivityQuery, ActivityReply
from sbus.broker.ipc.worker_protocol import Quiesce, RunQuery, Stop
from sbus.broker.worker import machine, sessions, table_reader
from sbus.broker.worker.log_walker import LogWalker
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.compiled import STEP
from sbus.limits import UNITS_PER_SECOND, Limits
from sbus.shared.accounts import WAITING_BYTES
from sbus.shared.ordered_log import WINDOW_SECONDS
from sbus.shared.shared_memory import MemoryLock
from sbus.shared.worker_statistics import MESSAGES_IN
from sbus.unix.credentials import Credentials
from tests.fuzz.one_process_bus import (
    WORKERS,
    OneProcessBus,
    Peer,
    SteppedWorker,
    one_process_bus,
)
from tests.support import compiled_step

SMALL_BUFFER_BYTES = 4608
LIMITS = Limits(
    log_bytes=8 * 1024 * 1024,
    table_bytes=1024 * 1024,
    stop_seconds_max=6.0,
    packet_bytes_max=4096,
    socket_buffer_bytes=SMALL_BUFFER_BYTES,
)
LARGE_BUFFER_BYTES = 400_000
RETRY_SECONDS = 0.01
"""After which a packet is sent again that the kernel had no memory for."""
ADOPTIONS_PER_TICK = 4
TICKS_TO_REST_MAX = 100
"""Enough for all that a test here gives a worker to do."""


Advance = Callable[[float], None]


@pytest.fixture
def bus(advance: Advance) -> Iterator[OneProcessBus]:
    with one_process_bus("slash", LIMITS) as opened:
        yield opened


class CriticalSections:
    """How many there were in this process since the last `clear`, compiled code included."""

    def __init__(self) -> None:
        self._entered = 0
        self._compiled_before = compiled_step.count_sections()

    def enter(self) -> None:
        self._entered += 1

    def clear(self) -> None:
        self._entered = 0
        self._compiled_before = compiled_step.count_sections()

    def __len__(self) -> int:
        return self._entered + compiled_step.count_sections() - self._compiled_before


@pytest.fixture
def critical_sections(monkeypatch: pytest.MonkeyPatch) -> CriticalSections:
    counted = CriticalSections()
    enter = MemoryLock.__enter__

    def count(lock: MemoryLock) -> memoryview:
        counted.enter()
        return enter(lock)

    monkeypatch.setattr(MemoryLock, "__enter__", count)
    return counted


def nearly(seconds: float) -> object:
    return pytest.approx(seconds, abs=1e-5)


def rest(worker: SteppedWorker) -> float:
    """Give ticks until the worker would sleep; returns for how many seconds."""
    for _ in range(TICKS_TO_REST_MAX):
        seconds = worker.tick()
        if worker.has_ended or (seconds and not worker.has_ready()):
            return seconds
    raise AssertionError("it does not come to rest")


def subscriber(bus: OneProcessBus, worker: int, buffer_bytes: int | None = None) -> Peer:
    """A client that receives all messages."""
    peer = bus.connect(worker, buffer_bytes=buffer_bytes)
    peer.send(b"SUB ")
    bus.settle()
    return peer


def publisher(bus: OneProcessBus, worker: int) -> Peer:
    peer = bus.connect(worker)
    bus.settle()
    return peer


def session_of(bus: OneProcessBus, peer: Peer) -> Session:
    return bus.workers[peer.worker].sessions[peer.number]


def published(bus: OneProcessBus, worker: int) -> int:
    """Messages that a worker's clients have published."""
    return bus.workers[worker].context.statistics.counts[MESSAGES_IN]


def messages(first: int, end: int) -> list[bytes]:
    return [b"MSG k\0%d" % number for number in range(first, end)]


def send(peer: Peer, packets: list[bytes]) -> list[bytes]:
    for packet in packets:
        peer.send(packet)
    return packets


def put_in_log(bus: OneProcessBus, peer: Peer, count: int) -> list[bytes]:
    """Publish so many messages, which no other worker has walked when this returns."""
    for parts in bus.workers:
        for _ in range(100):
            parts.sequencer._log.note_pace(10_000_000, WINDOW_SECONDS)
    bus.memory.wake(0b11)
    bus.settle()
    before = published(bus, peer.worker)
    packets = messages(0, count)
    for at in range(0, count, 50):
        send(peer, packets[at : at + 50])
        rest(bus.stepped[peer.worker])
    assert published(bus, peer.worker) - before == count
    return packets


# -- rest ------------------------------------------------------------------------------------------
def test_a_worker_with_nothing_to_do_sleeps_until_its_heartbeat(
    bus: OneProcessBus, advance: Advance
) -> None:
    worker, beat = bus.stepped[0], LIMITS.heartbeat_seconds
    advance(beat)
    assert worker.tick() == nearly(beat)
    assert bus.memory.silence_seconds(0) == 0
    advance(0.75 * beat)
    assert worker.tick() == nearly(0.25 * beat)
    assert bus.memory.silence_seconds(0) == nearly(0.75 * beat)
    advance(0.25 * beat)
    assert worker.tick() == nearly(beat)
    assert bus.memory.silence_seconds(0) == 0


def test_a_worker_ends_with_its_front(bus: OneProcessBus) -> None:
    bus.end_front(0)
    bus.stepped[0].tick()
    assert bus.stepped[0].has_ended


# -- turns -----------------------------------------------------------------------------------------
def test_a_lone_message_costs_one_tick_and_one_critical_section(
    bus: OneProcessBus, critical_sections: CriticalSections
) -> None:
    reader, writer = subscriber(bus, 0), publisher(bus, 0)
    send(writer, messages(0, 1))  # for the first, the worker reads the table
    bus.settle()
    assert reader.read() == messages(0, 1)
    for number in range(1, 4):
        critical_sections.clear()
        send(writer, messages(number, number + 1))
        assert bus.stepped[0].tick() > 0, "the worker may sleep at once"
        assert not bus.stepped[0].has_ready()
        assert len(critical_sections) == 1
        assert reader.read() == messages(number, number + 1)


def test_the_shortest_turns_publish(advance: Advance) -> None:
    limits = msgspec.structs.replace(LIMITS, quantum_units=2, batch_packets_max=1)
    with one_process_bus("slash", limits) as bus:
        reader, writer = subscriber(bus, 0), publisher(bus, 0)
        sent = send(writer, messages(0, 3))
        rest(bus.stepped[0])
        assert reader.read() == sent


def test_the_turns_of_a_tick_are_bounded(bus: OneProcessBus) -> None:
    writers = [publisher(bus, 0) for _ in range(10)]
    for writer in writers:
        send(writer, messages(0, 50))
    before = 0
    while (done := published(bus, 0)) < 500:
        assert bus.stepped[0].tick() == 0 or published(bus, 0) == 500
        before, done = done, published(bus, 0)
        assert 0 < done - before <= machine._COST_PER_TICK + LIMITS.quantum_units
    assert rest(bus.stepped[0]) > 0


def test_a_publisher_waits_while_the_worker_reads_a_large_table_and_others_do_not(
    bus: OneProcessBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_reader, "_RECORDS_PER_READ", 10)
    reader, another = bus.connect(1), bus.connect(1)
    for number in range(100):
        reader.send(b"SUB %d" % number)
    reader.send(b"SUB k")
    bus.settle()
    for number in range(45):  # which concerns no other worker
        another.send(b"SUB %d" % number)
    writers, other = [publisher(bus, 0), publisher(bus, 0)], publisher(bus, 0)
    bus.settle()
    for writer in writers:
        send(writer, messages(0, 3))
    ticks = 0
    while published(bus, 0) < 6:
        other.send(b"CMSG !/cred/whoami\0")
        bus.stepped[0].tick()
        assert len(other.read()) == 1, "it is answered in every tick"
        bus.stepped[1].tick()
        ticks += 1
        assert ticks < TICKS_TO_REST_MAX
    assert ticks >= 10
    bus.settle()
    assert sorted(reader.read()) == sorted(2 * messages(0, 3))


def test_a_lone_message_costs_one_critical_section_in_each_of_two_workers(
    bus: OneProcessBus, critical_sections: CriticalSections
) -> None:
    reader, writer = subscriber(bus, 0), publisher(bus, 1)
    send(writer, messages(0, 1))  # for the first, the publisher's worker reads the table
    bus.settle()
    assert reader.read() == messages(0, 1)
    for number in range(1, 4):
        critical_sections.clear()
        send(writer, messages(number, number + 1))
        assert bus.stepped[1].tick() > 0
        assert len(critical_sections) == 1
        assert bus.stepped[0].tick() > 0
        assert len(critical_sections) == 2
        assert reader.read() == messages(number, number + 1)
        assert not any(worker.has_ready() for worker in bus.stepped)


# -- walks -----------------------------------------------------------------------------------------
def test_a_long_walk_is_made_in_pieces(bus: OneProcessBus) -> None:
    """Of each message the entry costs one and its delivery another."""
    reader, writer = subscriber(bus, 0), publisher(bus, 1)
    sent = put_in_log(bus, writer, 1_000)
    per_piece = machine._COST_PER_WALK // 2
    got: list[bytes] = []
    while len(got) < len(sent):
        assert bus.stepped[0].tick() == 0
        piece = reader.read()
        assert len(piece) >= min(per_piece, len(sent) - len(got))
        assert len(piece) <= per_piece + LIMITS.batch_packets_max, "one block more"
        got += piece
    assert got == sent
    assert rest(bus.stepped[0]) > 0


def test_the_log_is_walked_now_and_then_while_clients_are_ready(bus: OneProcessBus) -> None:
    """With packets that have no place in the order: others are handled behind what the log has."""
    reader, writer = subscriber(bus, 0), publisher(bus, 1)
    for busy in [publisher(bus, 0) for _ in range(20)]:
        send(busy, [b"CMSG echo/on"] * 60)
    sent = send(writer, messages(0, 1))
    rest(bus.stepped[1])
    ticks = 0
    while reader.read() != sent:
        assert bus.stepped[0].tick() == 0
        ticks += 1
        assert ticks <= machine._COST_PER_WALK // machine._COST_PER_TICK
    assert ticks > 1, "it was walked before clients had turns"
    assert bus.stepped[0].tick() == 0, "the worker was not busy"


def test_publishing_spares_a_worker_that_was_woken_the_walk(
    bus: OneProcessBus, critical_sections: CriticalSections
) -> None:
    """The critical section of the batch has shown that there is nothing to walk."""
    reader, writer = subscriber(bus, 0), publisher(bus, 0)
    send(writer, messages(0, 1))  # for the first, the worker reads the table
    bus.settle()
    assert reader.read() == messages(0, 1)
    sent = send(writer, messages(1, 2))
    bus.memory.wake(0b01)
    critical_sections.clear()
    assert bus.stepped[0].tick() > 0
    assert len(critical_sections) == 1
    assert reader.read() == sent


# -- backlogs --------------------------------------------------------------------------------------


def fail_to_send(
    monkeypatch: pytest.MonkeyPatch, bus: OneProcessBus, peer: Peer, failures: int
) -> None:
    """Let the kernel have no memory for the next packets to a client of the first worker, where
    Python sends."""
    outbox, sequencer = session_of(bus, peer).outbox, bus.workers[0].sequencer
    left, send_to_socket = [errno.ENOBUFS] * failures, outbox._send

    def fail(packet: bytes) -> int:
        if left:
            raise OSError(left.pop(), os.strerror(errno.ENOBUFS))
        return send_to_socket(packet)

    monkeypatch.setattr(outbox, "_send", fail)
    monkeypatch.setattr(sequencer, "_step", sequencer._python_step)


def test_a_kernel_without_memory_is_tried_again_by_time(
    bus: OneProcessBus, advance: Advance, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = subscriber(bus, 0), publisher(bus, 0)
    fail_to_send(monkeypatch, bus, reader, failures=2)
    sent = send(writer, messages(0, 3))
    for _ in range(2):
        assert rest(bus.stepped[0]) == nearly(RETRY_SECONDS)
        assert reader.read() == []
        advance(RETRY_SECONDS / 2)
        assert rest(bus.stepped[0]) == nearly(RETRY_SECONDS / 2)
        assert reader.read() == []
        advance(RETRY_SECONDS / 2)
    assert rest(bus.stepped[0]) > RETRY_SECONDS
    assert reader.read() == sent


# -- commands --------------------------------------------------------------------------------------
def test_a_query_is_answered_after_the_turns_of_its_tick(bus: OneProcessBus) -> None:
    writer = publisher(bus, 0)
    send(writer, messages(0, 3))
    bus.tell(0, RunQuery(1, ActivityQuery([writer.number])))
    bus.stepped[0].tick()
    bus.settle()
    (reply,) = bus.replies
    activities = msgspec.msgpack.decode(reply.data, type=ActivityReply)
    assert activities[writer.number].messages_in == 3


def test_a_tick_adopts_several_clients_before_another_command(bus: OneProcessBus) -> None:
    """Users have no turns in the link, so that no client should be there for long."""
    bus.settle()
    for _ in range(ADOPTIONS_PER_TICK + 1):
        bus.connect(0)
    bus.tell(0, RunQuery(1, ActivityQuery([])))
    sessions = bus.workers[0].sessions
    bus.stepped[0].tick()
    assert len(list(sessions)) == ADOPTIONS_PER_TICK
    bus.stepped[0].tick()
    assert len(list(sessions)) == ADOPTIONS_PER_TICK + 1
    bus.settle()
    assert len(bus.replies) == 1


def test_a_tick_carries_out_one_command_that_may_take_long(bus: OneProcessBus) -> None:
    bus.settle()
    for number in range(2):
        bus.tell(0, RunQuery(number, ActivityQuery([])))
    bus.connect(0)
    bus.stepped[0].tick()
    bus.stepped[0].tick()
    assert not list(bus.workers[0].sessions)
    bus.stepped[0].tick()
    assert len(list(bus.workers[0].sessions)) == 1


# -- the end ---------------------------------------------------------------------------------------
def test_a_worker_that_quiesces_reads_no_more_and_says_so_once(bus: OneProcessBus) -> None:
    writer = publisher(bus, 0)
    bus.tell(0, Quiesce())
    rest(bus.stepped[0])
    send(writer, messages(0, 3))
    bus.settle()
    assert published(bus, 0) == 0
    assert bus.quiesced == [0]


def test_a_worker_that_stops_delivers_what_the_log_has_and_ends(bus: OneProcessBus) -> None:
    reader, writer = subscriber(bus, 0), publisher(bus, 1)
    sent = put_in_log(bus, writer, 1_000)
    bus.tell(0, Stop())
    got: list[bytes] = []
    for _ in range(TICKS_TO_REST_MAX):
        if bus.stepped[0].has_ended:
            break
        bus.stepped[0].tick()
        got += reader.read()
    assert bus.stepped[0].has_ended
    assert got == sent


def test_a_worker_that_stops_waits_for_a_client_that_does_not_read_until_its_time_is_up(
    bus: OneProcessBus, advance: Advance
) -> None:
    subscriber(bus, 0, SMALL_BUFFER_BYTES)
    send(publisher(bus, 0), messages(0, 40))
    rest(bus.stepped[0])
    bus.tell(0, Stop())
    patience = LIMITS.stop_seconds_max / 2
    assert rest(bus.stepped[0]) == nearly(patience)
    advance(patience - 0.001)
    assert rest(bus.stepped[0]) == nearly(0.001)
    advance(0.001)
    rest(bus.stepped[0])
    assert bus.stepped[0].has_ended


def test_a_worker_that_stops_tries_a_kernel_without_memory_again(
    bus: OneProcessBus, advance: Advance, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = subscriber(bus, 0), publisher(bus, 0)
    fail_to_send(monkeypatch, bus, reader, failures=2)
    sent = send(writer, messages(0, 3))
    bus.stepped[0].tick()
    bus.tell(0, Stop())
    for _ in range(2):
        assert rest(bus.stepped[0]) == nearly(RETRY_SECONDS)
        advance(RETRY_SECONDS)
    rest(bus.stepped[0])
    assert bus.stepped[0].has_ended
    assert reader.read() == sent


def test_a_worker_that_stops_ends_some_clients_in_each_tick(
    bus: OneProcessBus, advance: Advance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as do not take long, however much they have sent."""
    peers = [subscriber(bus, 0) for _ in range(5)]
    take(sessions._ENDING_SECONDS / 2, advance, "_disconnect", sessions.Sessions, monkeypatch)
    bus.tell(0, Stop())
    left: list[int] = []
    while not bus.stepped[0].has_ended:
        bus.stepped[0].tick()
        left.append(len(list(bus.workers[0].sessions)))
    assert [number for number in left if number < len(peers)] == [3, 1, 0]


def test_a_worker_that_stops_sleeps_though_publishers_are_held(
    bus: OneProcessBus, advance: Advance
) -> None:
    """The time at which they would be tried again is none at which it has anything to do."""
    reader, writer = subscriber(bus, 0, SMALL_BUFFER_BYTES), publisher(bus, 0)
    reader.send(b"CMSG blocking/soft/block")
    bus.settle()
    for at in range(0, 200, 50):
        send(writer, messages(at, at + 50))
        rest(bus.stepped[0])
    assert session_of(bus, writer) in bus.workers[0].wait_queue
    bus.tell(0, Stop())
    patience = LIMITS.stop_seconds_max / 2
    assert 0 < rest(bus.stepped[0]) <= patience
    advance(patience / 2)
    assert rest(bus.stepped[0]) == nearly(patience / 2)
    advance(patience / 2)
    rest(bus.stepped[0])
    assert bus.stepped[0].has_ended


@pytest.mark.usefixtures("real_time")
def test_only_the_time_in_which_a_worker_waits_is_sleep() -> None:
    """It pays for messages to many recipients."""
    with one_process_bus("slash", LIMITS) as bus:
        stepped, times = bus.stepped[0], bus.workers[0].context.fan_out_times
        bus.settle()
        slept_ns, elapsed_ns = [], []
        for seconds_max in (0.05, 0.001):
            before_ns, began_ns = times.words[fan_out_times._SLEPT_NS], time.monotonic_ns()
            stepped.parts.sequencer.poll(stepped.poller, {}, seconds_max, 64)
            elapsed_ns.append(time.monotonic_ns() - began_ns)
            slept_ns.append(times.words[fan_out_times._SLEPT_NS] - before_ns)
            time.sleep(0.05)  # the worker is busy
        assert slept_ns[0] >= 40_000_000
        assert slept_ns[1] <= elapsed_ns[1]


@pytest.mark.usefixtures("real_time")
@pytest.mark.parametrize("step", ["python", STEP])
def test_the_sleep_of_workers_that_share_a_processor_counts_in_part(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    with one_process_bus("slash", LIMITS) as bus:
        stepped, times = bus.stepped[0], bus.workers[0].context.fan_out_times
        sequencer = stepped.parts.sequencer
        if step == "python":
            sequencer._step = sequencer._python_step
        bus.settle()
        before_ns, began_ns = times.words[fan_out_times._SLEPT_NS], time.monotonic_ns()
        assert not sequencer.poll(stepped.poller, {}, 0.02, 64)
        elapsed_ns = time.monotonic_ns() - began_ns
        slept_ns = times.words[fan_out_times._SLEPT_NS] - before_ns
        assert 0.9 * 20_000_000 <= slept_ns * WORKERS <= elapsed_ns


# -- what clients had ------------------------------------------------------------------------------
def client_objects() -> int:
    """How many sessions and outboxes there are in this process."""
    return sum(isinstance(it, (Session, Outbox)) for it in gc.get_objects())


def test_what_a_client_had_is_freed_without_a_garbage_collection(bus: OneProcessBus) -> None:
    """Full collections are rare in a worker."""
    gc.collect()
    before = client_objects()
    gc.disable()
    try:
        readers = [subscriber(bus, 0, SMALL_BUFFER_BYTES) for _ in range(4)]
        writer = publisher(bus, 0)
        send(readers[0], [b"CMSG blocking/soft/block", b"CMSG !/notices/on"])
        send(readers[1], [b"CMSG order/random", b"SUB !/cred///%d" % os.getpid()])
        send(readers[2], [b"nonsense"])
        bus.settle()
        send(writer, messages(0, 100))
        bus.settle()
        for peer in (*readers, writer):
            peer.close()
        bus.settle()
        assert not list(bus.workers[0].sessions)
        assert gc.collect() == 0
        assert client_objects() == before
    finally:
        gc.enable()


# -- fair shares -----------------------------------------------------------------------------------
def test_what_is_read_of_a_user_and_waits_stays_within_its_quota(advance: Advance) -> None:
    """Also while a turn ends before all is handled that was read in it."""
    limits = msgspec.structs.replace(
        LIMITS, user_backlog_bytes_max=1024 * 1024, socket_buffer_bytes=LARGE_BUFFER_BYTES
    )
    with one_process_bus("slash", limits) as bus:
        reader = subscriber(bus, 0, SMALL_BUFFER_BYTES)
        reader.send(b"CMSG blocking/soft/block")
        writers = [bus.connect(0, buffer_bytes=LARGE_BUFFER_BYTES) for _ in range(40)]
        bus.settle()
        for _ in range(3):
            for writer in writers:
                with suppress(BlockingIOError):
                    while True:
                        writer.send(b"MSG k\0" + bytes(3_000))
            bus.settle()
            sessions_here = bus.workers[0].sessions
            read = sum(sum(map(len, it.packets[it.done :])) for it in sessions_here)
            assert read == bus.account.use(WAITING_BYTES)
            assert 0 < read <= limits.user_backlog_bytes_max
            reader.read()
        reader.close()
        bus.settle()
        assert not bus.account.use(WAITING_BYTES)


def test_a_turn_that_ends_in_misbehaviour_is_charged(bus: OneProcessBus) -> None:
    """Many clients that publish a little and then misbehave get no more turns than one that does
    not: after each of them comes the other user."""
    reader = subscriber(bus, 0)
    stranger = Credentials(gid=1, uid=2000, pid=1)
    misbehaving = [publisher(bus, 0) for _ in range(4)]
    other = bus.connect(0, stranger)
    bus.settle()
    for number, peer in enumerate(misbehaving):
        send(peer, [b"MSG k\0from %d" % number] * 20)
        peer.send(b"SUB !/cred//1//")  # another user's secrets
    send(other, [b"MSG k\0other"] * 100)
    bus.settle()
    senders = [packet[len(b"MSG k\0") :] for packet in reader.read()]
    turns = [sender for sender, _ in itertools.groupby(senders)]
    assert turns[:4] == [b"from 0", b"other", b"from 1", b"other"]


def record_published_at_each(
    name: str, of: type, bus: OneProcessBus, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """How much worker 0 had published at each call of this method."""
    counts: list[int] = []
    method = getattr(of, name)

    def recorded(*arguments: object) -> object:
        counts.append(published(bus, 0))
        return method(*arguments)

    monkeypatch.setattr(of, name, recorded)
    return counts


def take(
    seconds: float, advance: Advance, name: str, of: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let each call of this method take so long."""
    method = getattr(of, name)

    def slow(*arguments: object) -> object:
        advance(seconds)
        return method(*arguments)

    monkeypatch.setattr(of, name, slow)


def test_a_subscription_is_charged_by_the_time_that_it_takes(
    bus: OneProcessBus, advance: Advance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two subscriptions of a millisecond each, another user publishes for about as long."""
    subscribing = bus.connect(0, Credentials(gid=1, uid=2000, pid=1))
    others = [publisher(bus, 0) for _ in range(10)]
    take(0.001, advance, "subscribe", Subscriptions, monkeypatch)
    published_at = record_published_at_each("subscribe", Subscriptions, bus, monkeypatch)
    send(subscribing, [b"SUB %d" % number for number in range(3)])
    for peer in others:
        send(peer, messages(0, 100))
    bus.settle()
    units = 0.001 * UNITS_PER_SECOND
    first, second, third = published_at
    assert second - first == pytest.approx(units, abs=2 * LIMITS.quantum_units)
    assert third - second == pytest.approx(units, abs=2 * LIMITS.quantum_units)


def test_a_request_is_not_charged_for_the_walk_up_to_it(
    bus: OneProcessBus, advance: Advance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publishers of what is walked are."""
    reader, writer, other = subscriber(bus, 0), publisher(bus, 1), publisher(bus, 0)
    asking = bus.connect(0, Credentials(gid=1, uid=2000, pid=1))
    bus.settle()
    send(writer, messages(0, 10))
    rest(bus.stepped[1])
    take(0.01, advance, "_walk_ordinary", LogWalker, monkeypatch)
    published_at = record_published_at_each("barrier", Sequencer, bus, monkeypatch)
    send(asking, [b"CMSG !/cred/whoami"] * 5)
    send(other, messages(0, 100))
    bus.settle()
    assert len(reader.read()) == 110
    assert published_at == [published_at[0]] * 5, "another user had turns between the requests"


# -- the subscription table ------------------------------------------------------------------------
def test_a_worker_that_is_woken_once_reads_the_table_in_use(bus: OneProcessBus) -> None:
    """Though records that do not concern it are unread in the arena that it leaves."""
    first, second, writer = publisher(bus, 0), publisher(bus, 0), publisher(bus, 1)
    send(writer, messages(0, 1))
    send(first, [b"SUB a"])
    bus.settle()
    send(writer, messages(1, 2))
    bus.settle()
    send(second, [b"SUB a"])  # no edge: the other worker does not read it now
    bus.settle()
    bus.compact()
    bus.compact()
