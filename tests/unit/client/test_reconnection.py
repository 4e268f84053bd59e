"""A lost connection, step by step: what is sent again, what is reported, and when it ends.

The test is the bus, and it drives `reconnect` itself: what that yields is what a client would
wait for.
"""

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sbus.client.link import Link
from sbus.client.message_queue import Losses, Lost, Reconnected
from sbus.client.options import LinkOptions
from sbus.client.reconnecting import reconnect
from sbus.client.reconnection import (
    DELAY_SECONDS_MAX,
    DELAY_SECONDS_MIN,
    LASTING_SECONDS,
    Reconnection,
    Wait,
)
from sbus.client.requests import WhoamiBarrier
from sbus.errors import Disconnected, MessagesUnconfirmed, PacketRefused
from sbus.protocol.codes import FINAL_CODES, NOT_ADMITTED
from sbus.protocol.packets import Message
from tests.unit.client.fake_bus import ANSWER, GREETING, WHOAMI, FakeBus

REFUSAL = b"CMSG !/error\0not-allowed you may not subscribe to this"
CLOSED = "the bus closed the connection"


TOO_MANY = b"CMSG !/error\0too-many-connections your user has as many as it may"


def connect(
    fake: FakeBus, losses: Losses = "report", dialect: str = "slash"
) -> Link[Message | Lost]:
    options: LinkOptions = {"reconnect": True, "dialect": dialect}
    link: Link[Message | Lost] = Link(fake.address, losses, options)
    assert link.connect_nowait()
    send(link, link.barrier.greeting)
    assert fake.accept() == link.barrier.greeting
    return link


def send(link: Link[Message | Lost], *packets: bytes) -> None:
    for packet in packets:
        assert link.send_nowait(packet)


def ask(link: Link[Message | Lost]) -> int:
    """Send a barrier; returns its ticket."""
    request = link.barrier.encode()
    send(link, request)
    return link.note_request(request, link.barrier)


def lose(fake: FakeBus, link: Link[Message | Lost], *last_words: bytes) -> None:
    fake.send(*last_words)
    fake.hang_up()
    while link.read_nowait(10):
        pass


@pytest.fixture
def link(fake: FakeBus) -> Iterator[Link[Message | Lost]]:
    link = connect(fake)
    yield link
    link.close()


def connect_again(fake: FakeBus, link: Link[Message | Lost]) -> Iterator[Wait]:
    """Drive `reconnect` to where it waits for the reply to its barrier."""
    steps = reconnect(link)
    assert isinstance(next(steps), float)
    assert next(steps) == "readable"
    assert fake.accept() == link.barrier.greeting
    return steps


def next_delay(steps: Iterator[Wait]) -> float:
    """Drive `reconnect` to the next attempt, over what the bus has sent last."""
    for _ in range(4):
        if (wait := next(steps)) != "readable":
            assert isinstance(wait, float)
            return wait
    raise AssertionError("it waits for more from a bus that has gone")


def finish(steps: Iterator[Wait]) -> None:
    with pytest.raises(StopIteration):
        next(steps)


def make_again(fake: FakeBus, link: Link[Message | Lost], *replies: bytes) -> None:
    """Make the lost connection again; the bus replies to the barrier, and then so."""
    steps = connect_again(fake, link)
    fake.send(ANSWER, *replies)
    finish(steps)


def subscribed_again(fake: FakeBus, link: Link[Message | Lost], *replies: bytes) -> list[bytes]:
    """Lose the connection, and make it again; the packets that subscribe, to which these are
    replies."""
    lose(fake, link)
    make_again(fake, link, *replies, ANSWER)
    link.sock.shutdown(socket.SHUT_WR)
    packets = iter(fake.receive, b"")
    return [packet for packet in packets if packet.startswith(b"SUB ")]


class TestALostConnection:
    def test_is_set_as_before(self, fake: FakeBus, link: Link[Message | Lost]) -> None:
        send(link, b"CMSG echo/off", b"SUB a/*", b"SUB a/*", b"SUB b", b"UNSUB a/**", b"UNSUB b")
        send(link, b"CMSG blocking/soft/discard", b"CMSG order/stack", b"CMSG echo/on", b"SUB c")
        send(link, b"CMSG blocking/soft/block\0x", WHOAMI, b"CMSG nobody/knows")
        send(link, b"CMSG age/5", b"CMSG age/20", b"CMSG sender/on")
        for _ in range(15):
            fake.receive()
        lose(fake, link)
        assert link.is_lost
        steps = connect_again(fake, link)
        again = [fake.receive() for _ in range(6)]
        assert again == [
            b"CMSG echo/on",
            b"CMSG blocking/soft/block\0x",
            b"CMSG order/stack",
            b"CMSG age/20",
            b"CMSG sender/on",
            WHOAMI,
        ]
        fake.receive_nothing()
        fake.send(ANSWER)
        assert next(steps) == "readable"
        assert [fake.receive() for _ in range(3)] == [b"SUB a/*", b"SUB c", WHOAMI]
        fake.receive_nothing()
        assert link.is_lost
        fake.send(ANSWER)
        finish(steps)
        assert not link.is_lost

    def test_does_not_ask_again_for_what_was_refused(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        send(link, b"SUB a", b"SUB b")
        ask(link)
        fake.send(ANSWER)
        send(link, b"SUB b")
        ask(link)
        send(link, b"SUB c")
        ask(link)
        fake.send(REFUSAL, ANSWER, REFUSAL, ANSWER)
        assert subscribed_again(fake, link) == [b"SUB a", b"SUB b"]

    @pytest.mark.parametrize(
        "others", [(b"SUB b",), (b"MSG k\0",), (b"CMSG blocking/soft/block",), (b"SUB b", WHOAMI)]
    )
    def test_asks_again_for_what_may_not_have_been_refused(
        self, fake: FakeBus, link: Link[Message | Lost], others: Sequence[bytes]
    ) -> None:
        send(link, b"SUB a", *others)
        ask(link)
        fake.send(REFUSAL)
        assert b"SUB a" in subscribed_again(fake, link)

    def test_does_not_ask_a_third_time_for_what_the_next_bus_refuses(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        send(link, b"SUB a")
        assert subscribed_again(fake, link, REFUSAL) == [b"SUB a"]
        assert subscribed_again(fake, link) == []

    def test_is_lost_until_the_bus_replies(self, fake: FakeBus, link: Link[Message | Lost]) -> None:
        lose(fake, link)
        steps = connect_again(fake, link)
        assert link.inbox.take(link.inbox.own) is None
        with pytest.raises(BrokenPipeError):
            link.send_nowait(b"SUB a")
        fake.send(ANSWER)
        finish(steps)
        send(link, b"SUB a")

    def test_has_its_gap_between_old_and_new_messages(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        send(link, b"SUB a")
        lose(fake, link, b"MSG a\x001", b"CMSG !/lost\x003")
        steps = connect_again(fake, link)
        assert link.inbox.take(link.inbox.own) == Message(b"a", b"1")
        fake.send(ANSWER, b"MSG a\x002", b"CMSG !/lost\x004", ANSWER)
        finish(steps)
        taken = [link.inbox.take(link.inbox.own) for _ in range(3)]
        assert taken == [Reconnected(None, CLOSED), Message(b"a", b"2"), Lost(4)]
        link.inbox.own.check_invariants()

    def test_can_be_lost_again_at_any_step(self, fake: FakeBus, link: Link[Message | Lost]) -> None:
        send(link, b"SUB a")
        lose(fake, link, b"CMSG !/error\0too-slow you did not read")
        steps = connect_again(fake, link)
        fake.hang_up()
        assert next_delay(steps) > 0, "it begins anew"
        assert next(steps) == "readable"
        assert fake.accept() == GREETING
        fake.send(ANSWER)
        assert next(steps) == "readable"
        fake.hang_up()
        assert next_delay(steps) > 0, "it begins anew"
        assert next(steps) == "readable"
        assert fake.accept() == GREETING
        fake.send(ANSWER, ANSWER)
        finish(steps)
        lose(fake, link)
        assert link.is_lost
        assert link.interruptions == 4

    def test_is_made_from_the_start_if_that_was_given_up(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        send(link, b"SUB a")
        lose(fake, link)
        connect_again(fake, link)
        make_again(fake, link, ANSWER)
        assert [fake.receive() for _ in range(3)] == [WHOAMI, b"SUB a", WHOAMI]

    def test_in_the_dot_dialect(self, fake: FakeBus) -> None:
        link = connect(fake, dialect="dot")
        send(link, b"SUB a.")
        ask(link)
        lose(fake, link)
        steps = connect_again(fake, link)
        request = fake.receive()
        assert request.startswith(b"MSG sbus.sync.")
        fake.send(request)
        assert next(steps) == "readable"
        assert fake.receive() == b"SUB a."
        fake.send(fake.receive())
        finish(steps)
        assert link.inbox.take(link.inbox.own) == Reconnected(None, CLOSED), (
            "and no message is unconfirmed"
        )
        link.close()


class TestAName:
    JOIN = b"CMSG !/join\0ann"
    TAKEN = b"CMSG !/join\0ann\0name-taken another client has it"

    def join_again(self, fake: FakeBus, link: Link[Message | Lost]) -> Iterator[Wait]:
        """The bus says that another client has the name: the connection before, which it has not
        seen end."""
        send(link, self.JOIN)
        lose(fake, link)
        steps = connect_again(fake, link)
        self.answer(fake, self.TAKEN)
        return steps

    def answer(self, fake: FakeBus, reply: bytes) -> None:
        assert [fake.receive(), fake.receive()] == [self.JOIN, WHOAMI]
        fake.send(reply, ANSWER)

    def test_is_asked_for_until_it_is_free(self, fake: FakeBus, link: Link[Message | Lost]) -> None:
        steps = self.join_again(fake, link)
        for _ in range(2):
            assert isinstance(next(steps), float)
            assert next(steps) == "readable"
            self.answer(fake, self.TAKEN)
        assert isinstance(next(steps), float)
        assert next(steps) == "readable"
        self.answer(fake, self.JOIN)
        finish(steps)
        link.inbox.raise_errors()

    def test_that_stays_taken_is_an_error(self, fake: FakeBus, link: Link[Message | Lost]) -> None:
        steps = self.join_again(fake, link)
        for wait in steps:
            if wait == "readable":
                self.answer(fake, self.TAKEN)
        assert not link.is_lost
        with pytest.raises(PacketRefused, match="name-taken"):
            link.inbox.raise_errors()

    def test_that_is_refused_for_good_is_not_asked_for_again(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        send(link, self.JOIN)
        lose(fake, link)
        steps = connect_again(fake, link)
        self.answer(fake, b"CMSG !/join\0ann\0not-allowed by a rule")
        finish(steps)
        with pytest.raises(PacketRefused, match="not-allowed"):
            link.inbox.raise_errors()


class TestAReply:
    def test_that_will_not_come_is_not_waited_for(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        ticket = ask(link)
        before = link.interruptions
        assert not link.barrier.is_settled(ticket)
        lose(fake, link)
        assert link.barrier.is_settled(ticket)
        assert link.interruptions > before


class TestPublishedMessages:
    def test_are_not_sent_again_and_are_reported(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        send(link, b"MSG a\x001")
        ask(link)
        send(link, b"MSG a\x002", b"MSG a\x003")
        ask(link)
        fake.send(ANSWER)
        lose(fake, link)
        with pytest.raises(MessagesUnconfirmed, match="2 published") as caught:
            link.inbox.raise_errors()
        assert caught.value.count == 2
        link.inbox.raise_errors()
        steps = connect_again(fake, link)
        assert fake.receive() == WHOAMI
        fake.send(ANSWER)
        finish(steps)
        fake.receive_nothing()
        assert link.inbox.take(link.inbox.own) == Reconnected(None, CLOSED)

    def test_of_the_new_connection_are_counted_anew(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        send(link, b"MSG a\x001")
        lose(fake, link)
        make_again(fake, link)
        send(link, b"MSG a\x002", b"MSG a\x003")
        lose(fake, link)
        with pytest.raises(MessagesUnconfirmed, match="3 published"):
            link.inbox.raise_errors()


class TestAnEnd:
    @pytest.mark.parametrize("code", sorted(FINAL_CODES))
    def test_that_connecting_again_would_repeat(
        self, fake: FakeBus, link: Link[Message | Lost], code: str
    ) -> None:
        fake.send(ANSWER)
        lose(fake, link, b"CMSG !/error\0" + code.encode() + b" because")
        assert not link.is_lost
        with pytest.raises(Disconnected, match=f"because .{code}"):
            link.inbox.take(link.inbox.own)

    def test_because_the_bus_is_not_for_this_client(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        lose(fake, link)
        steps = connect_again(fake, link)
        fake.send(b"CMSG !/error\0" + NOT_ADMITTED.encode() + b" this bus is for others")
        fake.hang_up()
        with pytest.raises(Disconnected, match=f"others .{NOT_ADMITTED}"):
            next_delay(steps)
        with pytest.raises(Disconnected, match=f"others .{NOT_ADMITTED}"):
            link.inbox.take(link.inbox.own)

    def test_after_a_refused_packet_is_no_reason(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        lose(fake, link, ANSWER, b"CMSG !/error\0not-allowed a rule denies it")
        assert link.is_lost
        with pytest.raises(PacketRefused, match="not-allowed"):
            link.inbox.take(link.inbox.own)
        make_again(fake, link)
        assert link.inbox.take(link.inbox.own) == Reconnected(None, CLOSED)

    def test_because_the_address_is_no_bus_any_more(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        Path(fake.address).unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.bind(fake.address)
            lose(fake, link)
            steps = reconnect(link)
            next_delay(steps)
            assert next_delay(steps) > 0, "it looks twice"
            with pytest.raises(Disconnected, match="of another type"):
                next(steps)

    def test_for_a_reason_that_may_pass(self, fake: FakeBus, link: Link[Message | Lost]) -> None:
        lose(fake, link)
        steps = connect_again(fake, link)
        fake.send(TOO_MANY)
        fake.hang_up()
        assert next_delay(steps) > 0
        assert link.is_lost
        assert link.inbox.take(link.inbox.own) is None


class TestPacketsThatDiedWithAWorker:
    LOST = b"CMSG !/error\0packets-lost 2 packets were not processed"

    def test_are_reported_if_they_were_messages(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        send(link, b"SUB a")
        ask(link)
        send(link, b"MSG a\x001")
        fake.send(ANSWER, self.LOST)
        assert link.read_nowait(10)
        assert not link.is_lost
        with pytest.raises(PacketRefused, match="2 packets"):
            link.inbox.take(link.inbox.own)

    @pytest.mark.parametrize("change", [b"SUB a", b"UNSUB a", b"CMSG echo/off", WHOAMI])
    def test_are_sent_on_a_new_connection_if_they_changed_something(
        self, fake: FakeBus, link: Link[Message | Lost], change: bytes
    ) -> None:
        ask(link)
        send(link, b"MSG a\x001", change)
        fake.send(ANSWER, self.LOST, b"MSG b\x001")
        while link.read_nowait(10):
            pass
        assert link.is_lost
        with pytest.raises(MessagesUnconfirmed, match="1 published"):
            link.inbox.take(link.inbox.own)
        make_again(fake, link, ANSWER)
        gap = link.inbox.take(link.inbox.own)
        assert isinstance(gap, Reconnected)
        assert "a worker of the bus died" in gap.reason

    def test_may_have_been_those_of_a_new_connection(
        self, fake: FakeBus, link: Link[Message | Lost]
    ) -> None:
        send(link, b"SUB a")
        lose(fake, link)
        steps = connect_again(fake, link)
        fake.send(ANSWER, self.LOST)
        assert next_delay(steps) > 0, "it begins anew"
        assert link.is_lost


def test_a_full_inbox_does_not_keep_a_connection_lost(fake: FakeBus) -> None:
    options: LinkOptions = {"reconnect": True, "inbox_messages_max": 1}
    link: Link[Message | Lost] = Link(fake.address, "report", options)
    assert link.connect_nowait()
    send(link, GREETING)
    fake.accept()
    fake.send(b"MSG a\x001", b"MSG a\x002")
    fake.hang_up()
    assert link.read_nowait(10)
    link.give_up()
    make_again(fake, link)
    taken = [link.inbox.take(link.inbox.own) for _ in range(2)]
    assert isinstance(taken[1], Reconnected), "the second message is missing"
    assert taken[0] == Message(b"a", b"1")
    link.close()


class TestDelays:
    def test_grow_to_a_bound_and_differ(self) -> None:
        one, other = Reconnection(WhoamiBarrier()), Reconnection(WhoamiBarrier())
        delays = [one.next_delay() for _ in range(20)]
        assert DELAY_SECONDS_MIN / 2 <= delays[0] <= DELAY_SECONDS_MIN
        for before, after in zip(delays, delays[2:], strict=False):
            assert after >= before or after >= DELAY_SECONDS_MAX / 2
        assert DELAY_SECONDS_MAX / 2 <= delays[-1] <= DELAY_SECONDS_MAX
        assert delays != [other.next_delay() for _ in range(20)]

    def test_begin_small_again_when_a_connection_has_lasted(self) -> None:
        now = [100.0]
        kept = Reconnection(WhoamiBarrier(), clock=lambda: now[0])
        for _ in range(10):
            kept.next_delay()
        kept.note_made()
        now[0] += LASTING_SECONDS / 2
        kept.note_lost()
        assert kept.next_delay() > DELAY_SECONDS_MIN
        kept.note_made()
        now[0] += LASTING_SECONDS * 2
        kept.note_lost()
        assert kept.next_delay() <= DELAY_SECONDS_MIN
