"""Clients that are not served any more, and have not read everything that was sent to them.

A client that is disconnected for a reason is told in its last packet. If its socket is full, its
connection ends as soon as there is room for that packet.

The kernel keeps what they have not read for as long as their processes leave their sockets open.
Otherwise a user could have it keep any amount, by leaving and connecting again. So such a client
counts as a connection, and its large buffer stays on its user's account, until it has read the rest
or has closed its socket.
"""

import socket
from collections.abc import Iterator
from typing import NamedTuple

from sbus.broker.ipc.client_record import Departure
from sbus.broker.ipc.worker_link import WorkerLink
from sbus.broker.ipc.worker_protocol import ClientLeft
from sbus.broker.worker.poller import Poller
from sbus.broker.worker.send_buffers import SendBuffers
from sbus.shared.accounts import Account
from sbus.unix.closing import end_connection, send_last
from sbus.unix.send_buffer import has_unread


class _DepartedClient(NamedTuple):
    client: int
    sock: socket.socket
    account: Account
    reason: str
    notice: bytes
    """Has to be sent before its connection ends; empty afterwards, or if there is none."""


class DepartedClients:
    """Of one worker. It owns their sockets."""

    def __init__(self, poller: Poller, send_buffers: SendBuffers, link: WorkerLink) -> None:
        self._poller = poller
        self._send_buffers = send_buffers
        self._link = link
        self._by_fd: dict[int, _DepartedClient] = {}

    def add(
        self,
        client: int,
        sock: socket.socket,
        account: Account,
        reason: str,
        notice: bytes = b"",
    ) -> None:
        """End a connection behind this notice, if there is one; the front is told when the client
        has left for good."""
        departed = _told(_DepartedClient(client, sock, account, reason, notice))
        if departed.notice or has_unread(sock):  # it may have read everything since
            self._by_fd[sock.fileno()] = departed
            self._poller.add_departed(sock)
        else:
            self._forget(departed)

    def departures(self) -> Iterator[tuple[int, Departure]]:
        """The clients that have not read everything, with what another worker has to know."""
        for departed in self._by_fd.values():
            yield departed.client, Departure(reason=departed.reason, notice=departed.notice)

    def look_again(self) -> None:
        """They may have read something, which was not looked at."""
        for fd in list(self._by_fd):
            self.on_ready(fd)

    def leave_all(self) -> None:
        """Another bus has them."""
        for departed in self._by_fd.values():
            departed.sock.close()
        self._by_fd.clear()

    def have_untold(self) -> bool:
        """Whether a notice waits for room."""
        return any(departed.notice for departed in self._by_fd.values())

    def on_ready(self, fd: int) -> None:
        """The client with this descriptor, if there is one, has read something or has closed."""
        departed = self._by_fd.get(fd)
        if departed is None:
            return
        if departed.notice:
            departed = self._by_fd[fd] = _told(departed)
        if not departed.notice and not has_unread(departed.sock):
            del self._by_fd[fd]
            self._poller.remove(departed.sock)
            self._forget(departed)

    def forget_all(self) -> None:
        """The bus stops."""
        for departed in self._by_fd.values():
            self._forget(departed)
        self._by_fd.clear()

    def _forget(self, departed: _DepartedClient) -> None:
        self._send_buffers.release(departed.sock, departed.account)
        departed.sock.close()
        self._link.send(ClientLeft(departed.client, departed.reason))


def _told(departed: _DepartedClient) -> _DepartedClient:
    """Send the notice, if there is one, and end the connection; or neither, while there is no room
    for the notice."""
    if departed.notice and not send_last(departed.sock, departed.notice):
        return departed
    end_connection(departed.sock)
    return departed._replace(notice=b"")
