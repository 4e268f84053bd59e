"""The workers of one bus take the place of those of another: nobody notices more than a pause."""

import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest

from sbus.broker.config.access_policy import encode_rule_set
from sbus.broker.delivery.backlog import Backlog
from sbus.broker.ipc.records_file import RecordsFile, make_records_file
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    Done,
    Freeze,
    MapRecords,
    PrepareRecorded,
    RecordClients,
    ReportPrepared,
    RestoreClients,
    Thaw,
    WorkerCommand,
)
from sbus.errors import Misbehaviour
from sbus.limits import Limits
from tests.fuzz.one_process_bus import CREDENTIALS, WORKERS, OneProcessBus, one_process_bus
from tests.unit.broker.worker.bus_states import choose, routes, states, tell, usage

LIMITS = Limits(log_bytes=8 * 1024 * 1024, table_bytes=1024 * 1024)
SMALL_BUFFER_BYTES = 4608
SMALL_BUFFERS = msgspec.structs.replace(
    LIMITS, packet_bytes_max=4096, socket_buffer_bytes=SMALL_BUFFER_BYTES
)
Rule = Callable[[int], int]
"""Which worker of the new bus gets a client of this worker of the old bus."""


class Succession:
    """The front's part of what two buses do."""

    def __init__(self, old: OneProcessBus, new: OneProcessBus) -> None:
        self.old = old
        self.new = new
        self._number = 0
        self._files = 0
        self._prepared: set[int] = set()
        self.goes_to: Rule = lambda worker: worker
        self.without_descriptors: set[int] = set()
        """Workers of the new bus that get commands without the files of records."""

    def round(
        self,
        bus: OneProcessBus,
        command: Callable[[int], WorkerCommand],
        fds: dict[int, int] | None = None,
    ) -> int:
        """All workers of a bus carry out a command; returns the changes that they report."""
        self._number += 1
        for worker in range(WORKERS):
            bus.tell(worker, command(self._number), None if fds is None else fds[worker])
        bus.settle()
        answers = [it for it in bus.other_events if isinstance(it, Done)]
        assert [(it.number, it.why_not) for it in answers] == [(self._number, "")] * WORKERS
        bus.other_events.clear()
        return sum(it.changes for it in answers)

    def record(self) -> int:
        """Have the old bus describe its clients, and the new one prepare for those it does not
        have; returns the changes."""
        fds = {worker: make_records_file() for worker in range(WORKERS)}
        changes = self.round(self.old, RecordClients, fds)
        numbers = list(range(self._files, self._files + WORKERS))
        self._files += WORKERS
        for worker, fd in fds.items():
            for other in range(WORKERS):
                self.new.tell(
                    other, MapRecords(), None if other in self.without_descriptors else fd
                )
            for client, place in RecordsFile(fd).places():
                if client not in self._prepared:
                    self._prepare(worker, client, numbers[worker], *place)
            os.close(fd)
        return changes

    def _prepare(self, worker: int, client: int, file: int, at: int, size: int) -> None:
        self._prepared.add(client)
        session = self.old.workers[worker].sessions.find(client)
        own = CREDENTIALS if session is None else session.credentials
        place = self.new.account_of(own.uid).place
        adoption = AdoptClient(client, own, place, encode_rule_set(0), client)
        command = PrepareRecorded(adoption, file, at, size)
        sock = self._socket_of(worker, client)
        self.new.give_slot(client, sock)
        self.new.tell(self.goes_to(worker), command, sock.fileno())

    def _socket_of(self, worker: int, client: int) -> socket.socket:
        sessions = self.old.workers[worker].sessions
        session = sessions.find(client)
        if session is not None:
            return session.sock
        (departed,) = [it for it in sessions.departed._by_fd.values() if it.client == client]
        return departed.sock

    def record_anew(self) -> int:
        """Give up while clients are recorded, and record them again; returns the changes."""
        memfd = make_records_file()
        for worker in range(WORKERS):
            self.old.tell(worker, RecordClients(0), memfd)
        os.close(memfd)
        self._thaw(self.old)
        self.old.other_events.clear()
        return self.record()

    def begin(self) -> None:
        """What is done first, while the old bus serves."""
        self.round(self.new, Freeze)
        self.prepare()

    def prepare(self) -> int:
        """What may be done several times; returns the changes."""
        changes = self.record()
        for _ in range(2):
            self.round(self.new, ReportPrepared)
        return changes

    def adopt(self) -> int:
        """The pause, up to the moment when the old bus gives its clients up; returns the
        changes."""
        self.round(self.old, Freeze)
        changes = self.record()
        self.round(self.new, lambda number: RestoreClients(number, {}))
        return changes

    def commit(self) -> None:
        for worker in self.old.stepped:
            worker.die()
            worker.parts.sessions.departed.leave_all()
        self._thaw(self.new)

    def abort(self) -> None:
        for worker in self.new.stepped:
            worker.die()
        self._thaw(self.old)

    def _thaw(self, bus: OneProcessBus) -> None:
        for worker in range(WORKERS):
            bus.tell(worker, Thaw())
        bus.settle()

    def complete(self) -> None:
        self.begin()
        self.adopt()
        self.commit()


@pytest.fixture(params=[LIMITS], ids=["limits"])
def limits(request: pytest.FixtureRequest) -> Limits:
    assert isinstance(request.param, Limits)
    return request.param


@pytest.fixture
def two(limits: Limits) -> Iterator[Succession]:
    with ExitStack() as stack:
        buses = [stack.enter_context(one_process_bus("slash", limits)) for _ in range(2)]
        yield Succession(*buses)


def with_limits(limits: Limits) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("limits", [limits], ids=["other limits"], indirect=True)


@pytest.mark.parametrize("goes_to", [lambda worker: worker, lambda worker: 1 - worker, lambda _: 0])
@pytest.mark.parametrize("seed", range(8))
def test_everything_that_clients_chose_is_as_before(
    two: Succession, seed: int, goes_to: Rule
) -> None:
    two.goes_to = goes_to
    chance = random.Random(seed)
    peers = [two.old.connect(number % 2) for number in range(6)]
    two.old.settle()
    for _ in range(60):
        choose(two.old, peers, chance)
    two.begin()
    for _ in range(chance.choice((0, 3, 20))):
        choose(two.old, peers, chance)
    two.adopt()
    before = states(two.old), usage(two.old)
    two.commit()
    assert set(states(two.new)) == set(before[0])
    for client, state in states(two.new).items():
        for name in ("patterns", "echo", "notices", "flood control"):
            assert state[name] == before[0][client][name]
        assert state["rules"].keys() == before[0][client]["rules"].keys()
    assert usage(two.new)[:2] == before[1][:2]
    routes(two.new)
    for peer in peers:
        tell(two.new, peer, b"CMSG !/cred/whoami")
        assert peer.read()[-1].startswith(b"CMSG !/cred/whoami")
    two.new.check_invariants()


def test_a_frozen_worker_neither_reads_nor_sends(two: Succession) -> None:
    reader, writer = two.old.connect(0), two.old.connect(1)
    tell(two.old, reader, b"SUB k")
    two.begin()
    two.adopt()
    writer.send(b"MSG k\0behind")
    two.old.settle()
    two.new.settle()
    assert reader.read() == []
    two.commit()
    two.new.settle()
    assert reader.read() == [b"MSG k\0behind"]


def test_what_was_published_before_is_delivered_before(two: Succession) -> None:
    reader, writer = two.old.connect(0), two.old.connect(1)
    tell(two.old, reader, b"SUB k")
    two.begin()
    for number in range(100):
        writer.send(b"MSG k\0%d" % number)
    two.adopt()
    two.commit()
    two.new.settle()
    assert reader.read() == [b"MSG k\0%d" % number for number in range(100)]


def test_a_worker_that_lacks_records_says_so_and_can_be_thawed(two: Succession) -> None:
    """In the round that follows, whatever comes of the clients before."""
    peers = [two.old.connect(number % 2) for number in range(4)]
    for peer in peers:
        tell(two.old, peer, b"SUB k")
    two.round(two.new, Freeze)
    two.goes_to, two.without_descriptors = lambda _: 0, {0}
    two.record()
    for worker in range(WORKERS):
        two.new.tell(worker, ReportPrepared(9))
    two.new.settle()
    answers = {it.why_not for it in two.new.other_events if isinstance(it, Done)}
    assert answers == {"", "the worker has no descriptors left"}
    assert not two.new.workers[0].sessions.arriving
    two.new.tell(0, Thaw())
    two.new.settle()
    two.new.check_invariants()


def test_the_old_bus_goes_on_where_it_was(two: Succession) -> None:
    reader, writer = two.old.connect(0), two.old.connect(1)
    tell(two.old, reader, b"SUB k")
    two.begin()
    two.adopt()
    writer.send(b"MSG k\0behind")
    tell(two.old, reader, b"SUB l")
    two.abort()
    tell(two.old, writer, b"MSG l\0later")
    assert reader.read() == [b"MSG k\0behind", b"MSG l\0later"]
    two.old.check_invariants()


@with_limits(SMALL_BUFFERS)
@pytest.mark.parametrize("goes_on", [False, True])
def test_packets_that_have_to_wait_are_copied_before_the_pause(
    two: Succession, goes_on: bool
) -> None:
    reader = two.old.connect(0, buffer_bytes=SMALL_BUFFER_BYTES)
    writer = two.old.connect(1)
    tell(two.old, reader, b"CMSG blocking/soft/block", b"SUB k")
    sent = [b"MSG k\0%d" % number + bytes(1_000) for number in range(60)]
    tell(two.old, writer, *sent[:10])
    tell(two.old, writer, *sent[10:40])
    session = two.old.workers[1].sessions[writer.number]
    assert session.has_pending()
    two.begin()
    received: list[bytes] = []
    while goes_on and session.has_pending():
        received += reader.read()
        two.old.settle()
    tell(two.old, writer, *sent[40:])
    assert session.has_pending()
    changes = two.adopt()
    assert goes_on or changes < 30 * 1_000 // 256
    two.commit()
    while packets := reader.read():
        received += packets
        two.new.settle()
    assert received == sent


def test_clients_that_left_meanwhile_are_forgotten(two: Succession) -> None:
    left, stays = two.old.connect(0), two.old.connect(0)
    tell(two.old, left, b"SUB a")
    tell(two.old, stays, b"SUB a")
    two.begin()
    left.close()
    two.old.settle()
    two.adopt()
    two.commit()
    two.new.settle()
    assert list(states(two.new)) == [stays.number]
    assert usage(two.new)[0] == 1
    two.new.check_invariants()


def test_a_client_with_a_name_that_is_to_be_disconnected_still_is(two: Succession) -> None:
    """It had no turn any more in which the old bus could have done so."""
    named, watcher = two.old.connect(0), two.old.connect(1)
    tell(two.old, watcher, b"SUB !/presence/*/*")
    tell(two.old, named, b"CMSG !/notices/on", b"CMSG !/join\0n")
    watcher.read()
    two.begin()
    session = two.old.workers[0].sessions[named.number]
    session.outbox.fault = Misbehaviour("too-slow", "its socket was full")
    two.adopt()
    assert two.new.workers[0].sessions[named.number].outbox.is_closed, "it gets nothing more"
    two.commit()
    assert named.read()[-1] == b"CMSG !/error\0too-slow its socket was full"
    assert [packet for packet in watcher.read() if b"leave" in packet]
    two.new.settle()
    assert two.new.gone == {named.number: "too-slow"}


def test_patterns_are_copied_once_and_then_their_changes(two: Succession) -> None:
    peer, writer = two.old.connect(0), two.old.connect(1)
    for number in range(500):
        tell(two.old, peer, b"SUB k%d" % number)
    two.begin()
    assert two.prepare() < 500
    tell(two.old, peer, b"UNSUB k7", b"SUB new", b"SUB new", b"SUB k8", b"SUB t", b"UNSUB t")
    changes = two.adopt()
    two.commit()
    assert changes < 500
    state = states(two.new)[peer.number]["patterns"]
    assert state == {b"k%d" % number: 1 for number in range(500) if number != 7} | {
        b"k8": 2,
        b"new": 2,
    }
    tell(two.new, writer, b"MSG k7\0nobody", b"MSG k8\0once", b"MSG new\0once")
    assert peer.read() == [b"MSG k8\0once", b"MSG new\0once"]
    routes(two.new)
    two.new.check_invariants()


def test_the_next_bus_gets_everything_anew(two: Succession) -> None:
    for _ in range(40):
        tell(two.old, two.old.connect(0), b"SUB k")
    two.round(two.new, Freeze)
    first = two.record()
    assert two.record() < first
    assert two.record_anew() == first
    two.abort()


@with_limits(SMALL_BUFFERS)
@pytest.mark.parametrize("order", [b"queue", b"stack", b"random"])
def test_a_backlog_is_copied_once_and_then_its_changes(two: Succession, order: bytes) -> None:
    reader = two.old.connect(0, buffer_bytes=SMALL_BUFFER_BYTES)
    writer = two.old.connect(1)
    tell(two.old, reader, b"CMSG order/" + order, b"SUB k")
    sent = [b"MSG k\0%d" % number for number in range(400)]
    for start in range(0, 300, 50):
        tell(two.old, writer, *sent[start : start + 50])
    two.begin()
    received = reader.read()
    two.old.settle()
    assert two.prepare() < 200
    tell(two.old, writer, *sent[300:310])
    changes = two.adopt()
    two.commit()
    assert changes < 200
    tell(two.new, writer, *sent[310:])
    while packets := reader.read():
        received += packets
        two.new.settle()
    assert sorted(received) == sorted(sent)
    if order == b"queue":
        assert received == sent
    two.new.check_invariants()


@with_limits(SMALL_BUFFERS)
@pytest.mark.parametrize("order", [b"queue", b"stack"])
def test_the_pause_is_no_longer_for_what_waited_before(
    two: Succession, order: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = two.old.connect(0, buffer_bytes=SMALL_BUFFER_BYTES)
    writer = two.old.connect(1)
    tell(two.old, reader, b"CMSG order/" + order, b"SUB k")
    for start in range(0, 300, 50):
        tell(two.old, writer, *[b"MSG k\0%d" % number for number in range(start, start + 50)])
    two.begin()
    assert reader.read()
    two.old.settle()
    tell(two.old, writer, *[b"MSG k\0new"] * 10)
    two.round(two.old, Freeze)
    two.record()
    appended: list[bytes] = []
    append = Backlog.append

    def note_and_append(self: Backlog, packet: bytes) -> None:
        appended.append(packet)
        append(self, packet)

    monkeypatch.setattr(Backlog, "append", note_and_append)
    two.round(two.new, lambda number: RestoreClients(number, {}))
    assert appended == [b"MSG k\0new"] * 10
    two.commit()
    before, after = (bus.workers[0].sessions[reader.number].outbox for bus in (two.old, two.new))
    assert after.statistics().backlog == before.statistics().backlog > 100
    while reader.read():
        two.new.settle()
    two.new.check_invariants()
