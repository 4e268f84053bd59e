"""The sockets of a worker's clients, and the worker's sleep until one of them is readable.

All sockets are in one edge-triggered epoll set, which is itself one descriptor of trio's event
loop. So a thousand ready clients wake that loop once, and an idle client costs no task.
"""

import select
import socket

import trio

_EVENTS_PER_POLL = 256


class Poller:
    """`eventfd`, which is borrowed, wakes the worker; it is polled with the sockets."""

    def __init__(self, eventfd: int) -> None:
        self._epoll = select.epoll()
        self._epoll.register(eventfd, select.EPOLLIN)
        self._sleep = trio.CancelScope()

    def add(self, sock: socket.socket) -> None:
        self._epoll.register(sock, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def remove(self, sock: socket.socket) -> None:
        self._epoll.unregister(sock)

    def poll(self) -> list[tuple[int, int]]:
        """The descriptors that have become ready, and how."""
        return self._epoll.poll(0, _EVENTS_PER_POLL)

    async def sleep(self, seconds_max: float) -> None:
        """Sleep until a descriptor is ready, `end_sleep` is called, or the time is up."""
        with trio.move_on_after(seconds_max) as self._sleep:
            await trio.lowlevel.wait_readable(self._epoll.fileno())

    async def sleep_regardless(self) -> None:
        """Sleep until `end_sleep` is called, whatever is ready."""
        with trio.CancelScope() as self._sleep:
            await trio.sleep_forever()

    def end_sleep(self) -> None:
        self._sleep.cancel()

    def close(self) -> None:
        self._epoll.close()
