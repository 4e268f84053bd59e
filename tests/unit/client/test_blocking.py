"""The blocking client: the same names as trio's, timeouts, and the same answers.

What both clients share is tested where it lives; here is what waiting without a loop adds.
"""

import inspect
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sbus.client import blocking, connection
from sbus.client.inbox import InboxFull, Lost
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

Bus = blocking.Connection[Message]
SOON_S = 0.05


def publish_until_held_back(bus: Bus) -> int:
    """How many messages the bus took before it took no more."""
    for sent in range(1000):
        try:
            bus.publish("a", bytes(100_000), timeout_seconds=SOON_S)
        except TimeoutError:
            return sent
    raise AssertionError("nothing holds us back")


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def test_both_clients_have_the_same_names() -> None:
    assert public(blocking.Connection) == public(connection.Connection)


@pytest.mark.parametrize("name", sorted(public(blocking.Connection) - {"address"}))
def test_both_take_the_same_arguments_apart_from_the_timeout(name: str) -> None:
    def arguments(kind: type) -> list[tuple[str, object]]:
        parameters = inspect.signature(getattr(kind, name)).parameters
        return [(key, p.default) for key, p in parameters.items() if key != "timeout_seconds"]

    assert arguments(blocking.Connection) == arguments(connection.Connection)


class TestCalls:
    def test_send_what_the_protocol_writes(self, fake: FakeBus, bus: Bus) -> None:
        bus.subscribe("a/*")
        bus.unsubscribe(b"a/*")
        bus.publish("k", "p")
        bus.control("echo/off")
        received = [fake.receive() for _ in range(4)]
        assert received == [b"SUB a/*", b"UNSUB a/*", b"MSG k\0p", b"CMSG echo/off"]

    def test_sync_returns_when_its_reply_has_come(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(b"MSG a\x001")
        server = threading.Thread(target=lambda: fake.answer(WHOAMI, ANSWER))
        server.start()
        bus.sync(timeout_seconds=10)
        server.join()
        assert bus.receive() == Message(b"a", b"1")

    def test_whoami_says_who(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(ANSWER)
        assert bus.whoami() == Identity(IDENTITY, gid=5, uid=6, pid=7)

    def test_sync_raises_what_was_refused(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(b"CMSG !/error\0reserved not yours", ANSWER)
        with pytest.raises(PacketRefused, match="not yours"):
            bus.sync()

    def test_sync_in_the_dot_dialect_is_a_message_to_oneself(self, fake: FakeBus) -> None:
        with blocking.connect(fake.address, dialect="dot") as bus:
            key = fake.accept().removeprefix(b"SUB ")
            server = threading.Thread(target=lambda: fake.send(b"MSG a\x001", fake.receive()))
            server.start()
            bus.sync(timeout_seconds=10)
            server.join()
            assert key.startswith(b"sbus.sync.")
            assert bus.receive() == Message(b"a", b"1")
            with pytest.raises(ConfigurationError):
                bus.whoami()

    def test_sync_of_a_bus_that_goes_away_is_an_error(self, fake: FakeBus, bus: Bus) -> None:
        def hang_up() -> None:
            fake.answer(WHOAMI, b"CMSG !/error\0flood too much")
            fake.hang_up()

        server = threading.Thread(target=hang_up)
        server.start()
        with pytest.raises(Disconnected, match="too much"):
            bus.sync(timeout_seconds=10)
        server.join()

    def test_sync_has_a_bound_for_what_it_reads_on_its_way(self, fake: FakeBus) -> None:
        with blocking.connect(fake.address, inbox_bytes_max=20) as bus:
            fake.accept()
            fake.send(*[b"MSG a\0abcdefghi"] * 3, ANSWER)
            with pytest.raises(InboxFull):
                bus.sync()
            assert bus.receive_many(2) == [Message(b"a", b"abcdefghi")] * 2


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
        with pytest.raises(TimeoutError, match=r"0\.05 s"):
            call(bus)
        assert time.monotonic() - began >= SOON_S

    def test_end_a_wait_for_a_bus_that_takes_nothing_and_then_nothing_was_sent(
        self, fake: FakeBus, bus: Bus
    ) -> None:
        sent = publish_until_held_back(bus)
        assert sent > 0
        for _ in range(sent):
            fake.receive()
        fake.receive_nothing()
        bus.publish("a", b"last")
        assert fake.receive() == b"MSG a\0last"

    def test_end_a_wait_in_line(self, tmp_path: Path) -> None:
        with FakeBus(tmp_path) as fake:
            waiting = [blocking.connect(fake.address) for _ in range(2)]
            with pytest.raises(TimeoutError):
                blocking.connect(fake.address, timeout_seconds=SOON_S)
            for bus in waiting:
                bus.close()

    def test_take_what_is_there_first(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(b"MSG a\x001")
        assert bus.receive(timeout_seconds=0) == Message(b"a", b"1")
        with pytest.raises(TimeoutError):
            bus.receive(timeout_seconds=0)

    def test_leave_a_reply_that_is_ignored(self, fake: FakeBus, bus: Bus) -> None:
        with pytest.raises(TimeoutError):
            bus.sync(timeout_seconds=0)
        fake.send(ANSWER)
        with pytest.raises(TimeoutError):
            bus.sync(timeout_seconds=SOON_S)

    def test_leave_the_reply_to_a_whoami_by_hand_ignored(self, fake: FakeBus, bus: Bus) -> None:
        bus.control("!/cred/whoami")
        fake.send(ANSWER)
        with pytest.raises(TimeoutError):
            bus.sync(timeout_seconds=SOON_S)

    def test_leave_no_request_behind(self, fake: FakeBus) -> None:
        with blocking.connect(fake.address, dialect="dot") as bus:
            fake.accept()
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    bus.sync(timeout_seconds=0)
            assert isinstance(bus._link.barrier, EchoBarrier)
            assert not bus._link.barrier._tickets


class TestIteration:
    def test_goes_on_after_a_loss(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(b"MSG a\x001", b"CMSG !/lost\x005", b"MSG a\x002")
        assert next(bus) == Message(b"a", b"1")
        with pytest.raises(MessagesLost):
            next(bus)
        assert next(bus) == Message(b"a", b"2")

    def test_reports_losses_on_request(self, fake: FakeBus) -> None:
        with blocking.connect(fake.address, losses="report") as bus:
            fake.accept()
            fake.send(b"CMSG !/lost\x005", b"MSG a\x002")
            assert next(bus) == Lost(5)
            assert next(bus) == Message(b"a", b"2")

    def test_of_a_bus_that_went_away_is_an_error(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(b"CMSG !/error\0flood too much")
        fake.hang_up()
        with pytest.raises(Disconnected, match="too much"):
            next(bus)

    def test_just_ends_when_we_have_closed_it_ourselves(self, fake: FakeBus, bus: Bus) -> None:
        fake.send(b"MSG a\x001", b"MSG a\x002")
        seen = []
        for message in bus:
            seen.append(message)
            bus.close()
        assert seen == [Message(b"a", b"1")]
        with pytest.raises(Disconnected, match="this program"):
            bus.receive()


class TestDisconnection:
    def test_seen_while_publishing_has_the_reason_that_the_bus_gave(
        self, fake: FakeBus, bus: Bus
    ) -> None:
        fake.send(b"MSG a\x001", b"CMSG !/error\0flood too much")
        fake.hang_up()
        with pytest.raises(Disconnected, match="too much"):
            bus.publish("a")
        assert bus.receive() == Message(b"a", b"1")
        with pytest.raises(Disconnected, match="too much"):
            bus.receive()

    def test_without_a_reason_does_not_wait_for_ever(
        self, fake: FakeBus, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blocking, "REASON_SECONDS_MAX", SOON_S)
        assert fake.client is not None
        fake.client.shutdown(0)
        with pytest.raises(Disconnected, match="gave no reason"):
            bus.publish("a")

    def test_failed_connections_leave_no_socket_behind(self, tmp_path: Path) -> None:
        """A socket that nobody closed would be a ResourceWarning, which is an error here."""
        with pytest.raises(AddressError):
            blocking.connect(str(tmp_path / "none"))
