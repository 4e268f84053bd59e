"""The poller: the sockets of a worker's clients, its link and its eventfd, in one epoll set.

Clients' sockets are edge-triggered: one that is not read, because its client has to wait, costs
nothing until more arrives. The worker sleeps in `poll`, and an idle client costs no task.
"""

import select
import socket

READABLE = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
WRITABLE = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR

_CLIENT = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_FULL_CLIENT = _CLIENT | select.EPOLLOUT
_EVENTS_PER_POLL = 256


class Poller:
    """Borrows all descriptors that it is given."""

    def __init__(self, eventfd: int, link: socket.socket) -> None:
        self._epoll = select.epoll()
        # Edge-triggered, the eventfd need not be read: each write is an event.
        self._epoll.register(eventfd, select.EPOLLIN | select.EPOLLET)
        self._epoll.register(link, select.EPOLLIN)

    def fileno(self) -> int:
        """A descriptor that is readable while `poll` has something to return."""
        return self._epoll.fileno()

    def add(self, sock: socket.socket) -> None:
        """Report when this client's socket becomes readable."""
        self._epoll.register(sock, _CLIENT)

    def watch_room(self, sock: socket.socket, is_wanted: bool) -> None:
        """Whether to report also when this client's socket has room. What is ready now is reported
        once more."""
        self._epoll.modify(sock, _FULL_CLIENT if is_wanted else _CLIENT)

    def add_departed(self, sock: socket.socket) -> None:
        """Report whenever this client, whose connection is ended, has read something."""
        self._epoll.register(sock, select.EPOLLOUT | select.EPOLLET)

    def remove(self, sock: socket.socket) -> None:
        self._epoll.unregister(sock)

    def poll(self, seconds_max: float) -> list[tuple[int, int]]:
        """Sleep until a descriptor is ready, or the time is up; the descriptors that have become
        ready, and the events of each, in the bits of READABLE and WRITABLE."""
        return self._epoll.poll(seconds_max, _EVENTS_PER_POLL)

    def close(self) -> None:
        self._epoll.close()
