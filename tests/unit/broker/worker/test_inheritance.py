"""A successor serves the clients of a worker that died as that would have served them."""

import random
import time
from collections.abc import Iterator, Mapping

import msgspec
import pytest

from sbus.broker.config.access_policy import encode_rule_set
from sbus.broker.ipc.client_record import ClientRecord
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    ClientHandedOver,
    ClientPrepared,
    HandOverClient,
    PrepareClient,
)
from sbus.broker.worker.client_moves import ClientMoves
from sbus.broker.worker.session import Session
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.limits import Limits
from sbus.protocol.controls import FloodControl
from sbus.shared.accounts import SOCKET_BYTES
from sbus.shared.client_slots import ClientSettings
from sbus.shared.compaction import Compaction
from sbus.shared.subscription_table import Record, SubscriptionTable, all_have_read
from tests.fuzz.one_process_bus import CREDENTIALS, OneProcessBus, one_process_bus
from tests.unit.broker.worker.bus_states import choose, interrupt_batch, routes, states, tell, usage

LIMITS = Limits(log_bytes=8 * 1024 * 1024, table_bytes=1024 * 1024)
SMALL_BUFFER_BYTES = 4608
SMALL_BUFFERS = msgspec.structs.replace(
    LIMITS, packet_bytes_max=4096, socket_buffer_bytes=SMALL_BUFFER_BYTES
)
LOST = b"CMSG !/lost\0?"


@pytest.fixture
def bus() -> Iterator[OneProcessBus]:
    with one_process_bus("slash", LIMITS) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(20))
def test_everything_that_clients_chose_is_as_before(bus: OneProcessBus, seed: int) -> None:
    chance = random.Random(seed)
    peers = [bus.connect(number % 2) for number in range(6)]
    bus.settle()
    for _ in range(60):
        choose(bus, peers, chance)
        if chance.random() < 0.05:
            bus.compact()
    before = (states(bus), usage(bus), routes(bus))
    for worker in (0, 1, 0):
        bus.replace(worker)
        bus.settle()
        if chance.random() < 0.5:
            bus.compact()
        assert (states(bus), usage(bus), routes(bus)) == before
    for peer in peers:
        tell(bus, peer, b"CMSG !/cred/whoami")
    bus.check_invariants()
    assert bus.inherited == [3, 3, 3]


def test_a_client_that_is_beginning_to_hold_publishers_does_so_by_all_patterns(
    bus: OneProcessBus,
) -> None:
    peer = bus.connect(0)
    tell(bus, peer, b"CMSG !/notices/on", *(b"SUB %d" % number for number in range(100)))
    (before,) = bus.workers[0].sessions
    peer.send(b"CMSG blocking/soft/block")
    while not before.rule_by_pattern:
        bus.stepped[0].tick()
    assert len(before.rule_by_pattern) < 100
    bus.replace(0)
    bus.settle()
    (session,) = bus.workers[0].sessions
    assert session.rule_by_pattern.keys() == session.patterns.keys()
    assert peer.read() == []


def test_a_worker_notes_which_client_it_inherits(
    bus: OneProcessBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front blames that one if the worker dies of it."""
    numbers = [bus.connect(0).number for _ in range(3)]
    bus.settle()
    noted: list[tuple[int, int]] = []
    restore = Subscriptions.restore

    def observed(self: Subscriptions, session: Session, journalled: Mapping[bytes, int]) -> None:
        noted.append((session.client, bus.memory.served_clients[0]))
        restore(self, session, journalled)

    monkeypatch.setattr(Subscriptions, "restore", observed)
    bus.replace(0)
    assert noted == [(number, number) for number in numbers]
    assert bus.memory.served_clients[0] == 0


def test_no_compaction_overwrites_the_journal_that_is_read(
    bus: OneProcessBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is compacted as often as it may be while a late successor reads it."""
    peers = [bus.connect(1), bus.connect(0)]
    for number in range(50):
        tell(bus, peers[0], b"SUB %d" % number)
    tell(bus, peers[1], *(b"SUB a/%d" % number for number in range(10)))
    tell(bus, peers[0], *(b"UNSUB %d" % number for number in range(50)))
    before = states(bus)
    read_own = SubscriptionTable.read_own

    def read_late(self: SubscriptionTable, worker: int, end: int) -> Iterator[Record]:
        for _ in range(2):
            compact_if_possible(bus)
            while bus.stepped[1].is_awake():
                pass
        return read_own(self, worker, end)

    monkeypatch.setattr(SubscriptionTable, "read_own", read_late)
    bus.replace(0, is_late=True)
    bus.settle()
    assert states(bus) == before


def compact_if_possible(bus: OneProcessBus) -> None:
    with bus.memory.lock as words:
        compaction = Compaction(bus.memory, words) if all_have_read(bus.memory, words) else None
    if compaction is not None:
        while compaction.step():
            pass
        with bus.memory.lock as words:
            assert compaction.finish(words)
        bus.memory.wake(0b10)


def test_a_client_is_told_later_of_what_a_successor_could_not_tell() -> None:
    """Its socket is full when it has lost packets and an unknown number of messages; then the
    successor dies, too."""
    with one_process_bus("slash", SMALL_BUFFERS) as bus:
        reader, writer = bus.connect(0, buffer_bytes=SMALL_BUFFER_BYTES), bus.connect(1)
        tell(bus, reader, b"CMSG !/notices/on", b"SUB k")
        tell(bus, writer, *[b"MSG k\0%d" % number for number in range(100)])
        bus.workers[0].sessions[reader.number].slot.pending = 3
        bus.replace(0, is_late=True)
        for _ in range(2):
            bus.settle()
            bus.replace(0)
        bus.settle()
        messages = reader.read()
        assert 0 < len(messages) < 100
        bus.settle()
        told = reader.read()
        assert [packet[:25] for packet in told] == [b"CMSG !/error\0packets-lost", LOST]
        assert told[0].startswith(b"CMSG !/error\0packets-lost 3 ")
        bus.replace(0)
        bus.settle()
        assert reader.read() == [], "it was told already"


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_a_refused_long_request_is_told_also_behind_another_death(deaths: int) -> None:
    """Its publisher's socket is full meanwhile."""
    limits = msgspec.structs.replace(SMALL_BUFFERS, packet_bytes_max=8192)
    with one_process_bus("slash", limits) as bus:
        publisher, other = bus.connect(0, buffer_bytes=SMALL_BUFFER_BYTES), bus.connect(1)
        tell(bus, publisher, b"SUB k")
        tell(bus, other, *[b"MSG k\0%d" % number for number in range(100)])
        account = bus.workers[0].sessions[publisher.number].account
        account.pay_for(10_000_000, time.monotonic_ns())
        tell(bus, publisher, b"CMSG !/publish\0token\0k\0" + bytes(6_200))
        for _ in range(deaths):
            bus.replace(0)
            bus.settle()
        assert all(packet.startswith(b"MSG k\0") for packet in publisher.read())
        bus.settle()
        (receipt,) = (it for it in publisher.read() if not it.startswith(b"MSG k\0"))
        assert receipt.startswith(b"CMSG !/receipt\0token\0refused packets-lost ")


def test_a_client_with_subscriptions_and_notices_is_told_of_unknown_losses(
    bus: OneProcessBus,
) -> None:
    peers = [bus.connect(0) for _ in range(3)]
    both, subscriber, neither = peers
    tell(bus, both, b"CMSG !/notices/on", b"SUB k")
    tell(bus, subscriber, b"SUB k")
    tell(bus, neither, b"CMSG !/notices/on")
    bus.replace(0, is_late=True)
    tell(bus, neither, b"MSG k\0later")
    assert [peer.read() for peer in peers] == [[LOST, b"MSG k\0later"], [b"MSG k\0later"], []]


def test_a_client_without_subscriptions_is_told_if_messages_waited_for_it() -> None:
    with one_process_bus("slash", SMALL_BUFFERS) as bus:
        reader, writer = bus.connect(0, buffer_bytes=SMALL_BUFFER_BYTES), bus.connect(1)
        tell(bus, reader, b"CMSG !/notices/on", b"SUB k")
        tell(bus, writer, *[b"MSG k\0%d" % number for number in range(100)])
        tell(bus, reader, b"UNSUB k")
        bus.replace(0, is_late=True)
        bus.settle()
        assert 0 < len(reader.read()) < 100
        bus.settle()
        assert reader.read() == [LOST]


class Killed(BaseException):
    """Stands for the death of a process."""


def die(*_arguments: object) -> None:
    raise Killed


def test_a_client_is_served_from_where_it_was_handed_over(
    bus: OneProcessBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker has delivered what comes before. The other one dies before it walks there, and
    its successor dies while it takes the client over."""
    reader, writer = bus.connect(0), bus.connect(0)
    tell(bus, reader, b"SUB k")
    session = bus.workers[0].sessions[reader.number]
    place, number = session.account_place, reader.number
    adoption = AdoptClient(number, CREDENTIALS, place, encode_rule_set(0), number)
    record = ClientRecord(revision=session.revision, patterns=session.patterns)
    bus.tell(1, PrepareClient(adoption, record), session.sock.fileno())
    bus.settle()
    interrupt_batch(bus, 1)  # which this client does not get
    bus.tell(0, HandOverClient(number, 1, session.revision))
    for text in (b"before", b"behind"):
        writer.send(b"MSG k\0" + text)
        while bus.stepped[0].is_awake():
            pass
    bus.replace(1, arriving={number})
    take_over = ClientMoves.deliver
    monkeypatch.setattr(ClientMoves, "deliver", die)
    with pytest.raises(Killed):
        bus.settle()
    monkeypatch.setattr(ClientMoves, "deliver", take_over)
    bus.replace(1, arriving={number})
    tell(bus, reader, b"MSG k\0own")
    assert reader.read() == [b"MSG k\0" + text for text in (b"before", b"behind", b"own")]
    assert bus.other_events == [ClientPrepared(number), ClientHandedOver(number)]


def test_what_nobody_inherits_is_taken_back(bus: OneProcessBus) -> None:
    left, stays, other = bus.connect(0), bus.connect(0), bus.connect(1)
    for peer in (left, stays):
        tell(bus, peer, b"CMSG blocking/soft/block", b"SUB both")
    tell(bus, left, b"SUB own", b"SUB own")
    tell(bus, other, b"MSG k\0")  # now its worker knows all patterns
    bus.replace(0, without={left.number})
    tell(bus, other, b"MSG own\0", b"MSG both\0")
    router = bus.workers[1].router
    assert router.look_up(b"own").mask == 0
    assert not router.look_up(b"own").backpressure_rules
    rules = router.look_up(b"both").backpressure_rules
    assert [rule.client for found in rules.values() for rule in found] == [stays.number]
    assert stays.read() == [b"MSG both\0"]
    bus.compact()
    assert usage(bus)[0] == 1


def test_interest_that_outlived_its_client_is_taken_back_after_a_compaction(
    bus: OneProcessBus,
) -> None:
    """A worker dies before it has taken back all patterns of a client that has left."""
    left, stays, other = bus.connect(0), bus.connect(0), bus.connect(1)
    tell(bus, stays, b"SUB own")
    for number in range(100):
        left.send(b"SUB %d" % number)
    tell(bus, other, b"MSG 99\0")  # now its worker knows all patterns
    left.close()
    router = bus.workers[1].router
    while bus.stepped[0].tick() == 0 and bus.workers[0].sessions.find(left.number):
        pass
    bus.stepped[0].has_ended = True
    bus.compact()
    bus.stepped[0].has_ended = False
    bus.replace(0)
    bus.settle()
    tell(bus, other, b"MSG k\0")
    assert {router.look_up(b"%d" % number).mask for number in range(100)} == {0}
    assert router.look_up(b"own").mask == 1


def test_a_client_that_was_being_disconnected_is(bus: OneProcessBus) -> None:
    peer = bus.connect(0)
    tell(bus, peer, b"CMSG echo/off")
    bus.workers[0].sessions[peer.number].slot.close()
    bus.replace(0)
    bus.settle()
    assert peer.read() == []
    assert peer.ended
    assert bus.gone == {peer.number: "it was disconnected"}


@pytest.mark.parametrize("is_disconnected", [False, True])
def test_large_send_buffers_stay_on_the_account(bus: OneProcessBus, is_disconnected: bool) -> None:
    """Also that of a client that is disconnected and has not read everything."""
    reader, writer = (bus.connect(worker, buffer_bytes=SMALL_BUFFER_BYTES) for worker in (0, 1))
    tell(bus, reader, b"SUB k")
    for _ in range(100):
        tell(bus, writer, b"MSG k\0" + bytes(1_000))
    before = bus.account.use(SOCKET_BYTES)
    assert before > 0
    if is_disconnected:
        bus.workers[0].sessions[reader.number].slot.close()
    bus.replace(0)
    bus.settle()
    assert bus.account.use(SOCKET_BYTES) == before
    reader.read()
    bus.settle()
    bus.workers[0].sessions.send_buffers.shrink_unused()
    assert bus.account.use(SOCKET_BYTES) == 0


def test_a_client_that_was_not_served_yet_is_new(bus: OneProcessBus) -> None:
    """The last client of its slot had chosen something."""
    peer = bus.connect(0)
    bus.settle()
    session = bus.workers[0].sessions[peer.number]
    session.slot.save(peer.number + 1, ClientSettings(False, False, FloodControl()))
    bus.replace(0)
    tell(bus, peer, b"SUB k", b"MSG k\0")
    assert peer.read() == [b"MSG k\0"]
