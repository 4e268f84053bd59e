"""A connection that never waits, at the kernel's edge: addresses, sizes, ends."""

import socket
from pathlib import Path
from typing import Any

import pytest

from sbus.client import blocking
from sbus.client.link import Link
from sbus.client.options import LinkOptions
from sbus.errors import (
    AddressError,
    ConfigurationError,
    Disconnected,
    PacketRefused,
    ProtocolViolation,
)
from sbus.protocol.packets import Message
from tests.unit.client.fake_bus import ANSWER, WHOAMI, FakeBus


def make_link(address: str | None, **options: float) -> Link[Message]:
    return Link(address, "raise", LinkOptions(**options))  # type: ignore[typeddict-item]


class TestAddress:
    @pytest.mark.parametrize("address", ["", "/dev/fd/3", "/dev/unix/abstract", "x" * 200])
    def test_that_names_no_bus_is_an_error(self, address: str) -> None:
        with pytest.raises(AddressError):
            make_link(address)

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            ({"inbox_messages_max": 0}, "inbox_messages_max is 0"),
            ({"packet_bytes_max": "1M"}, "packet_bytes_max is '1M'"),
            ({"losses": "ignore"}, "losses is 'ignore': use raise or report"),
            ({"dialect": "comma"}, "slash or dot"),
            ({"dialect": "dot", "age_seconds": 1}, "age_seconds needs the dialect slash"),
            *[
                ({"age_seconds": seconds}, "age_seconds is .*: it has to be from 0.001")
                for seconds in (0, 0.0009, 86_400.001, -1, float("nan"), "1", None)
            ],
        ],
    )
    def test_wrong_value_is_an_error(self, options: dict[str, Any], what: str) -> None:
        with pytest.raises(ConfigurationError, match=what):
            blocking.connect("/here", **options)

    def test_unknown_option_is_an_error(self) -> None:
        options: dict[str, Any] = {"reconect": True}
        with pytest.raises(TypeError, match=r"no option 'reconect'; there are .*, sender$"):
            blocking.connect("/here", **options)

    @pytest.mark.parametrize(
        ("seconds", "packet"),
        [(0.001, b"CMSG age/1"), (0.0299, b"CMSG age/30"), (86_400, b"CMSG age/86400000")],
    )
    def test_a_connection_begins_with_its_age(self, seconds: float, packet: bytes) -> None:
        link = make_link("/here", age_seconds=seconds, sender=True)
        link.close()
        assert link.greetings[1:] == [b"CMSG sender/on", packet]


class TestConnecting:
    def failure(self, address: Path) -> str:
        link = make_link(str(address))
        try:
            with pytest.raises(AddressError) as caught:
                link.connect_nowait()
        finally:
            link.close()
        text = str(caught.value)
        assert text.startswith(f"cannot connect to {address}: ")
        assert "\n" not in text
        return text

    def test_to_what_a_dead_bus_left_asks_the_same(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(str(tmp_path / "dead"))
        text = self.failure(tmp_path / "dead")
        assert "Connection refused" in text
        assert "is sbusd running" in text

    def test_to_a_socket_of_another_kind_says_so(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.bind(str(tmp_path / "stream"))
            stream.listen()
            assert "no sbus" in self.failure(tmp_path / "stream")

    def test_without_permission_says_who_may(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As the kernel says it; a test that runs as root is never refused itself."""
        link = make_link("/here")

        def refuse(_address: object) -> None:
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as patch:
            patch.setattr(link, "sock", FakeSocket(refuse))
            with pytest.raises(AddressError, match="Permission denied: only users with access"):
                link.connect_nowait()
        link.close()


class FakeSocket:
    """A socket whose `connect` does as it is told."""

    def __init__(self, connect: object) -> None:
        self.connect = connect


class TestSizes:
    def test_a_packet_that_arrives_too_large_is_never_handed_out_cut(self, tmp_path: Path) -> None:
        with FakeBus(tmp_path) as bus:
            link = make_link(bus.address, packet_bytes_max=100)
            assert link.connect_nowait()
            assert link.send_nowait(b"CMSG !/notices/on")
            bus.accept()
            bus.send(b"MSG a\0" + b"x" * 94, b"MSG a\0" + b"x" * 95)
            assert link.read_nowait(10)
            assert link.inbox.take(link.inbox.own) == Message(b"a", b"x" * 94)
            with pytest.raises(ProtocolViolation, match="packet_bytes_max=101"):
                link.inbox.take(link.inbox.own)
            link.close()


class TestEnds:
    def test_what_was_sent_before_a_reset_is_still_received(self, tmp_path: Path) -> None:
        """A server that closes with our packets unread makes the kernel say ECONNRESET first."""
        with FakeBus(tmp_path) as bus:
            link = make_link(bus.address)
            assert link.connect_nowait()
            assert link.send_nowait(b"CMSG !/notices/on")
            bus.accept()
            assert link.send_nowait(b"MSG a\0unread")
            bus.send(b"MSG b\x001", b"CMSG !/error\0too-slow of it")
            bus.hang_up()
            while not link.inbox.ended:
                assert link.read_nowait(1) or not link.inbox.ended
            assert link.inbox.take(link.inbox.own) == Message(b"b", b"1")
            with pytest.raises(Disconnected, match="of it"):
                link.inbox.take(link.inbox.own)
            link.close()

    def test_sending_to_a_bus_that_is_gone_is_a_broken_pipe(self, tmp_path: Path) -> None:
        with FakeBus(tmp_path) as bus:
            link = make_link(bus.address)
            assert link.connect_nowait()
            assert link.send_nowait(b"CMSG !/notices/on")
            bus.accept()
            bus.hang_up()
            with pytest.raises(BrokenPipeError):
                link.send_nowait(b"MSG a\0")
            link.close()


class TestPacketsThatDiedWithAWorker:
    """Without reconnecting. Replies do not say which request they answer."""

    LOST = b"CMSG !/error\0packets-lost 2 packets were not processed"

    def ask(self, link: Link[Message]) -> int:
        request = link.barrier.encode()
        assert link.send_nowait(request)
        return link.note_request(request, link.barrier)

    @pytest.mark.parametrize("answers", [0, 1, 2])
    def test_are_no_reason_to_wait_for_ever(self, fake: FakeBus, answers: int) -> None:
        link = make_link(fake.address)
        assert link.connect_nowait()
        fake.accept_silent()
        tickets = [self.ask(link), self.ask(link)]
        before = link.interruptions
        fake.send(self.LOST, *[ANSWER] * answers)
        assert link.read_nowait(10)
        assert link.interruptions > before, "those who wait ask again"
        later = self.ask(link)
        assert [fake.receive(), fake.receive()] == [WHOAMI, WHOAMI]
        mark = fake.receive()
        assert mark.startswith(b"CMSG !/sync\0")
        fake.send(mark)
        assert link.read_nowait(10)
        assert all(map(link.barrier.is_settled, tickets))
        assert not link.barrier.is_settled(later)
        fake.send(ANSWER)
        assert link.read_nowait(10)
        assert link.barrier.is_settled(later)
        with pytest.raises(PacketRefused, match="2 packets"):
            link.inbox.take(link.inbox.own)
        link.close()

    def test_need_no_answer_where_nobody_waits_for_one(self, fake: FakeBus) -> None:
        link = make_link(fake.address)
        assert link.connect_nowait()
        fake.accept_silent()
        fake.send(self.LOST)
        assert link.read_nowait(10)
        fake.receive_nothing()
        link.close()

    def test_are_asked_for_when_the_socket_has_room(self, fake: FakeBus) -> None:
        link = make_link(fake.address)
        assert link.connect_nowait()
        fake.accept_silent()
        ticket = self.ask(link)
        filled = 0
        while link.send_nowait(b"MSG a\0"):
            filled += 1
        fake.send(self.LOST)
        assert link.read_nowait(10)
        assert link.loss_barrier.is_due
        assert fake.receive() == WHOAMI
        for _ in range(filled):
            fake.receive()
        assert not link.read_nowait(10)
        fake.send(fake.receive())
        assert link.read_nowait(10)
        assert link.barrier.is_settled(ticket)
        link.close()
