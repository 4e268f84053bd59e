"""What the asynchronous client and the blocking one have in common: names, replies, timeouts, end.

A call of the asynchronous client that is cancelled is one that has timed out.
"""

import inspect
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from sbus.client import blocking, connection
from sbus.client.inbox import InboxFull
from sbus.client.message_queue import Lost
from sbus.client.requests import EchoBarrier, Identity
from sbus.errors import (
    AddressError,
    ConfigurationError,
    Disconnected,
    MessagesLost,
    PacketRefused,
)
from sbus.protocol.packets import Message
from tests.unit.client.fake_bus import ANSWER, IDENTITY, WHOAMI, FakeBus

Bus: TypeAlias = blocking.Connection[Message]
Connect: TypeAlias = Callable[..., Bus]
SOON_S = 0.05
CONTROLS: dict[str, Callable[[Bus], object]] = {
    "control": lambda bus: bus.control("echo/off"),
    "whoami": lambda bus: bus.whoami(),
    "me": lambda bus: bus.me(),
    "join": lambda bus: bus.join("ann"),
    "request": lambda bus: bus.request("a"),
}


def publish_until_held_back(bus: Bus) -> int:
    """How many numbered messages the bus took before it took no more."""
    for sent in range(1_000):
        try:
            bus.publish("a", b"%d " % sent + bytes(100_000), timeout_seconds=SOON_S)
        except TimeoutError:
            return sent
    raise AssertionError("nothing holds us back")


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def test_both_clients_have_the_same_names() -> None:
    assert public(blocking.Connection) - {"fileno"} == public(connection.Connection)


@pytest.mark.parametrize("name", sorted(public(connection.Connection) - {"address"}))
def test_both_take_the_same_arguments_apart_from_the_timeout(name: str) -> None:
    def arguments(kind: type) -> list[tuple[str, object]]:
        parameters = inspect.signature(getattr(kind, name)).parameters
        return [(key, p.default) for key, p in parameters.items() if key != "timeout_seconds"]

    assert arguments(blocking.Connection) == arguments(connection.Connection)


class TestPackets:
    def test_are_as_the_protocol_writes_them(self, fake: FakeBus, bus: Bus) -> None:
        bus.subscribe("a/*")
        bus.unsubscribe(b"a/*")
        bus.publish("k", "p")
        bus.publish(b"k")
        bus.control("echo/off")
        bus.control("x", b"y")
        received = [fake.receive() for _ in range(6)]
        assert received[:3] == [b"SUB a/*", b"UNSUB a/*", b"MSG k\0p"]
        assert received[3:] == [b"MSG k\0", b"CMSG echo/off", b"CMSG x\0y"]

    def test_over_the_limit_are_not_sent(self, fake: FakeBus, bus: Bus) -> None:
        with pytest.raises(PacketRefused, match="send it in parts") as caught:
            bus.publish(b"a", bytes(409_600))
        assert caught.value.code == "packet-too-long"
        fake.receive_nothing()
        bus.publish(b"a", bytes(409_600 - len(b"MSG a\0")))
        assert len(fake.receive()) == 409_600

    @pytest.mark.parametrize("call", list(CONTROLS.values()), ids=list(CONTROLS))
    def test_of_the_dot_dialect_hold_no_control_messages(
        self, fake: FakeBus, connect: Connect, call: Callable[[Bus], object]
    ) -> None:
        with connect(fake.address, dialect="dot") as bus:
            assert fake.accept().startswith(b"SUB sbus.sync.")
            with pytest.raises(ConfigurationError, match="no control messages"):
                call(bus)
            fake.receive_nothing()


class TestSync:
    def test_returns_when_its_reply_has_come(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(b"MSG a\x001")
        server = threading.Thread(target=lambda: fake.answer(WHOAMI, ANSWER))
        server.start()
        bus.sync(timeout_seconds=60)
        server.join()
        assert bus.receive() == Message(b"a", b"1")

    def test_is_part_of_a_whoami(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(ANSWER)
        assert bus.whoami() == Identity(IDENTITY, gid=5, uid=6, pid=7)

    def test_raises_what_was_refused_before(self, fake: FakeBus, bus: Bus) -> None:
        bus.publish("a")
        fake.send(b"CMSG !/error\0reserved that key belongs to the bus", ANSWER, ANSWER)
        with pytest.raises(PacketRefused, match="that key belongs to the bus"):
            bus.sync()
        bus.sync()

    def test_is_a_message_to_oneself_in_the_dot_dialect(
        self, fake: FakeBus, connect: Connect
    ) -> None:
        with connect(fake.address, dialect="dot") as bus:
            key = fake.accept().removeprefix(b"SUB ")
            questions: list[bytes] = []

            def echo() -> None:
                questions.append(fake.receive())
                fake.send(b"MSG a\x001", questions[0])

            server = threading.Thread(target=echo)
            server.start()
            bus.sync(timeout_seconds=60)
            server.join()
            assert questions[0].startswith(b"MSG " + key + b"\0")
            assert bus.receive() == Message(b"a", b"1")

    def test_of_a_bus_that_goes_away_is_an_error(self, fake: FakeBus, bus: Bus) -> None:
        def hang_up() -> None:
            fake.answer(WHOAMI, b"MSG a\x001", b"CMSG !/error\0too-slow too much")
            fake.hang_up()

        server = threading.Thread(target=hang_up)
        server.start()
        with pytest.raises(Disconnected, match="too much"):
            bus.sync(timeout_seconds=60)
        server.join()
        assert bus.receive() == Message(b"a", b"1")

    def test_finds_its_reply_behind_no_more_messages_than_the_inbox_holds(
        self, fake: FakeBus, connect: Connect
    ) -> None:
        with connect(fake.address, inbox_messages_max=10) as bus:
            fake.accept()
            fake.send(*[b"MSG a\0%d" % number for number in range(11)], ANSWER)
            with pytest.raises(InboxFull, match=r"10 messages .*receive them first"):
                bus.sync()
            assert len(bus.receive_many()) == 10
            assert bus.receive() == Message(b"a", b"10")
            fake.send(ANSWER)
            bus.sync()


class TestTimeouts:
    @pytest.mark.parametrize(
        "call",
        [
            lambda bus: bus.receive(timeout_seconds=SOON_S),
            lambda bus: bus.receive_many(timeout_seconds=SOON_S),
            lambda bus: bus.sync(timeout_seconds=SOON_S),
            lambda bus: bus.whoami(timeout_seconds=SOON_S),
        ],
        ids=["receive", "receive_many", "sync", "whoami"],
    )
    def test_end_a_wait_for_a_silent_bus(
        self, fake: FakeBus, bus: Bus, call: Callable[[Bus], object]
    ) -> None:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            call(bus)
        assert time.monotonic() - began >= SOON_S

    def test_end_a_wait_for_a_bus_that_takes_nothing_and_then_nothing_was_sent(
        self, fake: FakeBus, bus: Bus
    ) -> None:
        sent = publish_until_held_back(bus)
        assert sent > 0
        received = [fake.receive() for _ in range(sent)]
        assert [packet[6:].split()[0] for packet in received] == [b"%d" % n for n in range(sent)]
        fake.receive_nothing()
        bus.publish("a", b"last")
        assert fake.receive() == b"MSG a\0last"

    def test_end_a_wait_in_line(self, tmp_path: Path, connect: Connect) -> None:
        with FakeBus(tmp_path, admits=False) as fake:
            waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
            for sock in waiting:
                sock.connect(fake.address)
            with pytest.raises(TimeoutError):
                connect(fake.address, timeout_seconds=SOON_S)
            for sock in waiting:
                sock.close()

    def test_end_a_wait_for_the_answer_of_a_bus_that_has_hung(
        self, tmp_path: Path, connect: Connect
    ) -> None:
        with FakeBus(tmp_path, admits=False) as fake, pytest.raises(TimeoutError):
            connect(fake.address, timeout_seconds=SOON_S)

    def test_take_what_is_there_first(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(b"MSG a\x001")
        assert bus.receive(timeout_seconds=SOON_S) == Message(b"a", b"1")
        with pytest.raises(TimeoutError):
            bus.receive(timeout_seconds=0)

    def test_leave_a_reply_that_is_ignored(self, fake: FakeBus, bus: Bus) -> None:
        with pytest.raises(TimeoutError):
            bus.sync(timeout_seconds=SOON_S)
        fake.send(ANSWER)
        with pytest.raises(TimeoutError):
            bus.sync(timeout_seconds=SOON_S)

    def test_leave_the_reply_to_a_whoami_by_hand_ignored(self, fake: FakeBus, bus: Bus) -> None:
        bus.control("!/cred/whoami")
        fake.send(ANSWER)
        with pytest.raises(TimeoutError):
            bus.sync(timeout_seconds=SOON_S)

    def test_leave_no_request_behind(self, fake: FakeBus, connect: Connect) -> None:
        with connect(fake.address, dialect="dot") as bus:
            fake.accept()
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    bus.sync(timeout_seconds=0.01)
            assert isinstance(bus._link.barrier, EchoBarrier)
            assert not bus._link.barrier._tickets


class TestReceiveMany:
    def test_takes_everything_that_is_there(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(*[b"MSG a\0%d" % number for number in range(100)])
        assert bus.receive_many(30) == [Message(b"a", b"%d" % n) for n in range(30)]
        assert len(bus.receive_many()) == 70

    def test_of_none_is_a_mistake(self, fake: FakeBus, bus: Bus) -> None:
        with pytest.raises(ValueError, match="at least one"):
            bus.receive_many(0)


class TestIteration:
    def test_goes_on_after_a_loss_exactly_at_the_gap(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(b"MSG a\x001", b"CMSG !/lost\x005", b"MSG a\x002")
        assert next(bus) == Message(b"a", b"1")
        with pytest.raises(MessagesLost) as caught:
            next(bus)
        assert caught.value.count == 5
        assert next(bus) == Message(b"a", b"2")

    def test_reports_losses_among_the_messages_on_request(
        self, fake: FakeBus, connect: Connect
    ) -> None:
        with connect(fake.address, losses="report") as bus:
            fake.accept()
            fake.send(b"MSG a\x001", b"CMSG !/lost\x00?", b"CMSG !/lost\x005", b"MSG a\x002")
            seen = [next(bus) for _ in range(3)]
            assert seen == [Message(b"a", b"1"), Lost(None), Message(b"a", b"2")]

    def test_of_a_bus_that_went_away_is_an_error(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(b"MSG a\x001", b"CMSG !/error\0no-nul a MSG packet needs a NUL")
        fake.hang_up()
        assert next(bus) == Message(b"a", b"1")
        for _ in range(2):
            with pytest.raises(Disconnected, match="a MSG packet needs a NUL"):
                next(bus)

    def test_just_ends_when_we_have_closed_it_ourselves(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(b"MSG a\x001", b"MSG a\x002")
        seen = []
        for message in bus:
            seen.append(message)
            bus.close()
        assert seen == [Message(b"a", b"1")]
        for call in (bus.receive, bus.sync, lambda: bus.publish("a")):
            with pytest.raises(Disconnected, match="this program"):
                call()


class TestLoggedLosses:
    def test_end_no_iteration(
        self, fake: FakeBus, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        with connect(fake.address, losses="log") as bus:
            fake.accept()
            fake.send(b"CMSG !/lost\x002", b"MSG a\x001", b"CMSG !/lost\x005", b"CMSG !/lost\x001")
            fake.send(b"CMSG !/error\0packets-lost 3 packets", b"MSG a\x002", b"CMSG !/lost\x00?")
            seen = [next(bus), *bus.receive_many()]
            assert seen == [Message(b"a", b"1"), Message(b"a", b"2")]
            fake.send(b"MSG a\x003", ANSWER)
            assert bus.receive_many() == [Message(b"a", b"3")]
            with pytest.raises(PacketRefused, match="packets-lost"):
                bus.sync()
        logged = [record.getMessage() for record in caplog.records if record.name == "sbus"]
        assert [text.split()[0] for text in logged] == ["3", "2", "6", "messages"]


class TestDisconnection:
    def test_seen_while_publishing_has_the_reason_that_the_bus_gave(
        self, fake: FakeBus, bus: Bus
    ) -> None:
        fake.send(b"MSG a\x001", b"CMSG !/error\0too-slow too much")
        fake.hang_up()
        with pytest.raises(Disconnected, match="too much"):
            bus.publish("a")
        assert bus.receive() == Message(b"a", b"1")
        with pytest.raises(Disconnected, match="too much"):
            bus.receive()

    def test_without_a_reason_does_not_wait_for_ever(
        self, fake: FakeBus, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sbus.client.waiting_link.REASON_SECONDS_MAX", SOON_S)
        assert fake.client is not None
        fake.client.shutdown(0)
        with pytest.raises(Disconnected, match="gave no reason"):
            bus.publish("a")

    def test_at_once_leaves_no_socket_behind(self, tmp_path: Path, connect: Connect) -> None:
        """A socket that nobody closed would be a ResourceWarning, which is an error here."""
        with pytest.raises(AddressError, match="is sbusd running"):
            connect(str(tmp_path / "none"))


def test_statistics_count_from_the_beginning(fake: FakeBus, connect: Connect) -> None:
    with connect(fake.address) as bus:
        fake.accept()
        fake.send(b"MSG a\x001", b"CMSG !/lost\x005", b"CMSG !/news\0tomorrow", ANSWER)
        bus.sync()
        statistics = bus.statistics()
    assert (statistics.messages_received, statistics.messages_lost) == (1, 5)
    assert (statistics.messages, statistics.controls_ignored) == (2, 1)
