"""Messages with receipts: what their publishers are told, also when workers die."""

import itertools
import os
from collections.abc import Iterator

import pytest

from sbus.broker.config.access_policy import encode_rule_set
from sbus.broker.ipc.client_record import ClientRecord
from sbus.broker.ipc.records_file import make_records_file
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    Done,
    Freeze,
    HandOverClient,
    PrepareClient,
    RecordClients,
)
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.broker.worker.wait_queue import Wait
from sbus.limits import Limits
from sbus.protocol.receipts import Counts
from sbus.shared.receipt_table import ENTRIES, OPEN_OF_CLIENT_MAX, ReceiptTable
from sbus.unix.credentials import Credentials
from tests.fuzz.one_process_bus import CREDENTIALS, OneProcessBus, Peer, one_process_bus
from tests.support.threads import wait_until
from tests.unit.broker.delivery.outbox_peer import SMALL_BUFFER_BYTES
from tests.unit.broker.worker.bus_states import tell


@pytest.fixture
def bus() -> Iterator[OneProcessBus]:
    with one_process_bus("slash", Limits()) as opened:
        yield opened


def ask(token: bytes, key: bytes = b"k", payload: bytes = b"") -> bytes:
    return b"CMSG !/publish\0%b\0%b\0%b" % (token, key, payload)


def told(token: bytes, text: bytes) -> bytes:
    return b"CMSG !/receipt\0%b\0%b" % (token, text)


def test_many_may_be_open_and_the_rest_wait(bus: OneProcessBus) -> None:
    """The reader's worker does not walk, and then does."""
    reader, writer = bus.connect(1), bus.connect(0)
    tell(bus, reader, b"SUB k")
    count = 2 * OPEN_OF_CLIENT_MAX
    for number in range(count):
        writer.send(ask(b"%d" % number))
        bus.stepped[0].tick()
    assert len(bus.workers[0].context.receipts.open) <= OPEN_OF_CLIENT_MAX
    bus.settle()
    assert writer.read() == [told(b"%d" % number, b"1 0 0") for number in range(count)]
    assert len(reader.read()) == count
    table = bus.workers[0].context.receipts
    assert not table.open
    assert not table.has_any(writer.number)
    assert len(table._free) == ENTRIES


def test_a_publishers_worker_that_dies_tells_it_later(bus: OneProcessBus) -> None:
    """The message was placed, and delivered to its own clients."""
    reader, writer = bus.connect(1), bus.connect(0)
    tell(bus, reader, b"SUB k")
    writer.send(ask(b"t"))
    while not bus.workers[0].context.receipts.open:
        bus.stepped[0].tick()
    bus.replace(0)
    bus.settle()
    assert writer.read() == [told(b"t", b"1 0 0")]
    assert reader.read() == [b"MSG k\0"]
    tell(bus, writer, ask(b"again"))
    assert writer.read() == [told(b"again", b"1 0 0")]


def test_a_successor_charges_open_receipts_to_their_user(bus: OneProcessBus) -> None:
    """Those of a client that has left are nobody's."""
    reader = bus.connect(1)
    tell(bus, reader, b"SUB k")
    writer, leaver = (bus.connect(0, Credentials(gid=100, uid=1001, pid=4712)) for _ in range(2))
    for peer in (writer, leaver):
        peer.send(ask(b"t"))
    while len(bus.workers[0].context.receipts.open) < 2:
        bus.stepped[0].tick()
    before = bus.workers[0].context.receipts.open
    assert all(receipt.account_place for receipt in before.values())
    bus.replace(0, without={leaver.number})
    assert bus.workers[0].context.receipts.open == {
        entry: receipt for entry, receipt in before.items() if receipt.client == writer.number
    }
    bus.settle()
    assert writer.read() == [told(b"t", b"1 0 0")]
    assert len(bus.workers[0].context.receipts._free) == ENTRIES


def test_a_message_that_was_held_when_the_publishers_worker_died_is_published_once(
    bus: OneProcessBus,
) -> None:
    reader, writer, answers = stall_reader(bus)
    number = len(answers)
    received = reader.read()
    bus.replace(0)
    bus.settle()
    received += reader.read()
    assert writer.read() == [told(b"%d" % number, b"1 0 0")], "and no notice of lost packets"
    assert received.count(b"CMSG !/lost\x001") == 1, "the one before it waited in the dead worker"
    assert len(received) == number + 1


def stall_reader(bus: OneProcessBus) -> tuple[Peer, Peer, list[bytes]]:
    """A reader that holds its user's publishers back, a writer whose last request waits for it, and
    the receipts of those before."""
    reader = bus.connect(0, buffer_bytes=SMALL_BUFFER_BYTES)
    tell(bus, reader, b"CMSG !/notices/on", b"CMSG blocking/soft/block", b"SUB k")
    writer = bus.connect(0)
    tell(bus, writer, b"CMSG !/notices/on")
    answers: list[bytes] = []
    for number in itertools.count():
        tell(bus, writer, ask(b"%d" % number, payload=bytes(1_000)))
        answers += writer.read()
        if len(answers) == number:
            return reader, writer, answers
    raise AssertionError


def test_a_message_waits_on_if_its_reader_stalls_again(
    bus: OneProcessBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the second try the reader has room, which it has lost by the third."""
    reader, writer, answers = stall_reader(bus)
    calls = []
    begin_holding = Sequencer._begin_holding

    def begin_later(sequencer: Sequencer, batch: PublishBatch, now_ns: int) -> Wait | None:
        calls.append(batch)
        return begin_holding(sequencer, batch, now_ns) if len(calls) > 1 else None

    monkeypatch.setattr(Sequencer, "_begin_holding", begin_later)
    bus.workers[0].context.wake()
    bus.settle()
    assert len(calls) == 2
    received = reader.read()
    bus.settle()
    received += reader.read()
    assert writer.read() == [told(b"%d" % len(answers), b"1 0 0")]
    assert len(received) == len(answers) + 1


def test_a_message_that_nobody_walks_to_while_a_worker_is_succeeded_has_its_receipt(
    bus: OneProcessBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor has no clients, and begins at the end of the log, behind the message."""
    reader, writer = bus.connect(0), bus.connect(1)
    tell(bus, reader, b"SUB k")
    start = Subscriptions.start

    def start_behind_a_message(subscriptions: Subscriptions) -> None:
        writer.send(ask(b"t"))
        while not bus.workers[1].context.receipts.open:
            bus.stepped[1].tick()
        start(subscriptions)

    monkeypatch.setattr(Subscriptions, "start", start_behind_a_message)
    bus.replace(0, without={reader.number})
    bus.settle()
    assert writer.read() == [told(b"t", b"?")]


def test_a_client_with_an_open_receipt_is_not_handed_over(bus: OneProcessBus) -> None:
    reader, writer = bus.connect(1), bus.connect(0)
    tell(bus, reader, b"SUB k")
    session = bus.workers[0].sessions[writer.number]
    adoption = AdoptClient(
        writer.number, CREDENTIALS, session.account_place, encode_rule_set(0), writer.number
    )
    record = ClientRecord(revision=session.revision, patterns=session.patterns)
    bus.tell(1, PrepareClient(adoption, record), session.sock.fileno())
    bus.settle()
    writer.send(ask(b"t"))
    bus.tell(0, HandOverClient(writer.number, 1, session.revision))
    bus.settle()
    assert writer.read() == [told(b"t", b"1 0 0")]


@pytest.mark.parametrize(("recipients_worker", "text"), [("delivers", b"1 0 0"), ("dies", b"?")])
def test_an_upgrade_waits_until_open_receipts_are_told(
    bus: OneProcessBus, recipients_worker: str, text: bytes
) -> None:
    """In the pause, when no worker reads from its clients."""
    reader, writer = bus.connect(1), bus.connect(0)
    tell(bus, reader, b"SUB k")
    writer.send(ask(b"t"))
    while not bus.workers[0].context.receipts.open:
        bus.stepped[0].tick()
    memfd = make_records_file()
    bus.tell(0, Freeze(1))
    bus.tell(0, RecordClients(2), memfd)
    os.close(memfd)
    for _ in range(100):
        bus.stepped[0].tick()
    bus._take_events()
    assert bus.other_events == [Done(1)]
    assert writer.read() == []

    def is_recorded() -> bool:
        bus.settle()
        return any(isinstance(it, Done) and it.number == 2 for it in bus.other_events)

    if recipients_worker == "dies":
        bus.replace(1)
    wait_until(is_recorded, "worker 0 has recorded its clients")
    assert writer.read() == [told(b"t", text)]
    assert reader.read() == [b"MSG k\0"]


def test_a_late_worker_writes_to_no_other_entry() -> None:
    words = memoryview(bytearray(8 * 2 * ENTRIES * 15)).cast("Q")
    own, other = ReceiptTable(words, 2, 0), ReceiptTable(words, 2, 1)
    first = own.take(1, 1000, 7, b"t")
    assert first is not None
    own.place(first, 0b10)
    late = own.reference(first)
    own.give_back(first)
    assert own.take(1, 1000, 8, b"u") == first
    own.place(first, 0b10)
    assert other.note_done(late, Counts(5, 5, 5)) == 0
    assert other.note_done(own.reference(first), Counts(1, 2, 3)) == 0b01
    assert not own.is_complete(first)
    own.note_done(own.reference(first), Counts(10, 20, 30))
    assert own.counts(first) == Counts(11, 22, 33)
