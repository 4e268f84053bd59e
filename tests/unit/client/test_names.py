"""Requests about names, with each client: what is sent, and what their replies come to."""

from contextlib import ExitStack

import pytest

from sbus.client import blocking
from sbus.client.blocking_streams import MemberWatch
from sbus.client.names import UNKNOWN, Roster
from sbus.errors import PacketRefused
from sbus.protocol.packets import Message, parse_server_packet
from sbus.protocol.presence import Member, MemberChange
from tests.support.threads import Task
from tests.unit.client.fake_bus import ANSWER, ORDER, WHOAMI, FakeBus

Bus = blocking.Connection[Message]

ANN, BEN = Member(1, b"ann", 7, 2, 3), Member(1, b"ben", 8, 2, 3)
TIMEOUT_S = 60.0
SOON_S = 0.05
DIED = b"CMSG !/error\0packets-lost 1 packet was not processed"


def message(packet: bytes) -> Message:
    parsed = parse_server_packet(packet)
    assert isinstance(parsed, Message)
    return parsed


def list_of(*members: Member, first: bytes = b"end") -> bytes:
    lines = [b"%d %b %d %d %d" % (it.uid, it.name, it.client, it.gid, it.pid) for it in members]
    return b"CMSG !/members\0" + b"\n".join([first, *lines])


def test_a_name_is_taken_with_a_will(fake: FakeBus, bus: Bus) -> None:
    joins = Task(lambda: bus.join("ann", will=("gone/ann", b"\xff\0")))
    fake.answer(b"CMSG !/join\0ann\0gone/ann\0\xff\0", b"CMSG !/join\0ann")
    joins.join()
    leaves = Task(bus.leave)
    fake.answer(b"CMSG !/leave", b"CMSG !/leave\0ann")
    leaves.join()


def test_what_no_bus_accepts_is_not_sent(fake: FakeBus, bus: Bus) -> None:
    for name in ("", "a b", "x" * 65):
        with pytest.raises(PacketRefused, match="bad-name"):
            bus.join(name)
    with pytest.raises(PacketRefused, match="bad-will"):
        bus.join("ann", will=("key", bytes(4_096)))
    with pytest.raises(PacketRefused, match="bad-name"):
        bus.members("worker-*")
    with pytest.raises(TypeError):
        bus.join(3)  # type: ignore[arg-type]
    fake.receive_nothing()


def test_a_long_list_is_asked_for_in_pieces(fake: FakeBus, bus: Bus) -> None:
    found: list[Member] = []
    asks = Task(lambda: found.extend(bus.members("1/*")))
    fake.answer(b"CMSG !/members\x001/*", list_of(ANN, first=b"more"))
    fake.answer(b"CMSG !/members\x001/*\x001/ann", list_of(BEN))
    asks.join()
    assert found == [ANN, BEN]


def test_a_request_whose_reply_is_lost_with_a_worker_is_repeated(fake: FakeBus, bus: Bus) -> None:
    joins = Task(lambda: bus.join("ann"))
    fake.answer(b"CMSG !/join\0ann", DIED)
    mark = fake.receive().removeprefix(b"CMSG !/sync\0")
    fake.send(b"CMSG !/sync\0" + mark)
    fake.answer(b"CMSG !/join\0ann", b"CMSG !/join\0ann")
    with pytest.raises(PacketRefused, match="packets-lost"):  # it may have been another packet
        joins.join()


def test_a_watch_asks_about_a_gap_until_it_has_the_list(fake: FakeBus) -> None:
    asked = b"CMSG !/members\x001/*"
    changes: list[MemberChange] = []
    watches: list[MemberWatch] = []
    with fake.admitting(), blocking.connect(fake.address) as bus, ExitStack() as stack:

        def receive() -> None:
            changes.append(watches[0].receive(timeout_seconds=TIMEOUT_S))

        fake.accept()
        opens = Task(lambda: watches.append(stack.enter_context(bus.watch_members("1/*"))))
        fake.answer(ORDER)
        fake.answer(b"SUB !/presence/1/*")
        fake.answer(WHOAMI, ANSWER)
        fake.answer(asked, list_of(ANN))
        opens.join()
        fake.send(b"CMSG !/lost\x002")
        with pytest.raises(TimeoutError):
            watches[0].receive(timeout_seconds=SOON_S)
        refused = Task(receive)
        assert fake.receive() == asked
        fake.answer(asked, list_of(ANN), b"CMSG !/error\0not-allowed no", list_of(ANN, BEN))
        with pytest.raises(PacketRefused, match="not-allowed"):
            refused.join()
        receives = Task(receive)
        fake.answer(asked, list_of(ANN, BEN))
        receives.join()
        assert changes == [MemberChange(BEN)]
        assert watches[0].members() == [ANN, BEN]


# -- who is there ----------------------------------------------------------------------------------
def test_a_roster_follows_what_is_told() -> None:
    roster = Roster()
    assert roster.replace([ANN]) == [MemberChange(ANN)]
    assert roster.feed(message(ANN.join_message())) is None
    assert roster.feed(message(BEN.join_message())) == MemberChange(BEN)
    assert roster.members() == [ANN, BEN]
    assert roster.feed(message(ANN.leave_message("left"))) == MemberChange(ANN, "left")
    assert roster.feed(message(ANN.leave_message("left"))) is None
    assert roster.replace([ANN]) == [MemberChange(BEN, UNKNOWN), MemberChange(ANN)]


def test_a_leave_of_an_earlier_connection_is_not_that_of_the_present_one() -> None:
    roster = Roster()
    roster.replace([Member(1, b"ann", 9, 2, 3)])
    assert roster.feed(message(ANN.leave_message("left"))) is None


def test_a_roster_passes_over_other_messages() -> None:
    assert Roster().feed(Message(b"a", b"join 1 2 3")) is None
