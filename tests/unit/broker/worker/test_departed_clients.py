"""Clients that left without having read everything: they are there until they have, or close."""

import os
import socket
from collections.abc import Iterator
from typing import cast

import pytest

from sbus.broker.ipc.worker_link import WorkerLink
from sbus.broker.ipc.worker_protocol import ClientLeft
from sbus.broker.worker import departed_clients
from sbus.broker.worker.departed_clients import DepartedClients
from sbus.broker.worker.poller import Poller
from sbus.broker.worker.send_buffers import SendBuffers
from sbus.limits import Limits
from sbus.shared.accounts import SOCKET_BYTES
from tests.unit.shared.memories import open_account

LIMITS = Limits()


class Scene:
    """A worker's poller, what it reports to the front, and one account."""

    def __init__(self) -> None:
        self._eventfd = os.eventfd(0)
        self._link, self._front = socket.socketpair()
        self.poller = Poller(self._eventfd, self._link)
        self.reported: list[ClientLeft] = []
        self.account = open_account(LIMITS)
        self.buffers = SendBuffers()
        self.departed = DepartedClients(self.poller, self.buffers, cast(WorkerLink, self))

    def send(self, report: ClientLeft) -> None:
        """As a link to the front."""
        self.reported.append(report)

    def leave(self, client: int, *packets: bytes, notice: bytes = b"") -> socket.socket:
        """A client that has not read these packets is disconnected with this notice; its end. The
        worker's end has the descriptor `fd`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        assert self.buffers.enlarge(ours, self.account, LIMITS)
        for packet in packets:
            ours.send(packet)
        self.fd = ours.fileno()
        self.departed.add(client, ours, self.account, "why", notice)
        return theirs

    def settle(self) -> None:
        while ready := self.poller.poll(0):
            for fd, _ in ready:
                self.departed.on_ready(fd)

    def clients_left(self) -> list[int]:
        self.settle()
        return [report.client for report in self.reported]

    def close(self) -> None:
        self.poller.close()
        self._link.close()
        self._front.close()
        os.close(self._eventfd)


@pytest.fixture
def scene() -> Iterator[Scene]:
    opened = Scene()
    yield opened
    opened.close()


def test_all_leave_with_the_bus(scene: Scene) -> None:
    with scene.leave(1, b"one") as one, scene.leave(2, b"two") as two:
        assert scene.clients_left() == []
        scene.departed.forget_all()
        assert scene.clients_left() == [1, 2]
        assert [one.recv(10), one.recv(10)] == [b"one", b""]
        assert two.recv(10) == b"two"
    assert scene.account.use(SOCKET_BYTES) == 0


FULL = (b"x" * 100_000,) * 5
"""More than a large buffer keeps."""


def receive_all(end: socket.socket) -> list[bytes]:
    packets = []
    while packet := end.recv(100_000):
        packets.append(packet)
    return packets


def test_a_client_that_reads_everything_in_that_instant_is_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for the notice, and nothing unread a moment later."""
    monkeypatch.setattr(departed_clients, "send_last", lambda _sock, _packet: False)
    with scene.leave(1, notice=b"why") as end:
        scene.settle()
        assert scene.reported == []
        monkeypatch.undo()
        scene.departed.on_ready(scene.fd)
        assert [end.recv(10), end.recv(10)] == [b"why", b""]
        assert scene.clients_left() == [1]


def test_the_bus_does_not_wait_for_a_client_that_does_not_read(scene: Scene) -> None:
    with scene.leave(1, *FULL, notice=b"why") as end:
        assert scene.departed.have_untold()
        scene.departed.forget_all()
        assert not scene.departed.have_untold()
        assert scene.clients_left() == [1]
        assert receive_all(end) == [*FULL]
