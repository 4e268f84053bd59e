"""A connection for programs without an event loop: waiting for what a `Link` cannot do at once."""

import contextlib
import select
import threading
import time
from collections.abc import Iterator
from typing import Generic, NoReturn

from sbus.client.link import (
    CONNECT_RETRY_SECONDS,
    READ_PACKETS_MAX,
    REASON_SECONDS_MAX,
    SEND_RETRY_SECONDS,
    Link,
)
from sbus.client.message_queue import Item, MessageQueue
from sbus.client.requests import Requests


class Deadline:
    """The moment when a call gives up, if ever."""

    def __init__(self, timeout_seconds: float | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._at = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def left_ms(self) -> float | None:
        """The time that is left, at least 0; None without a timeout."""
        return None if self._at is None else max(0.0, (self._at - time.monotonic()) * 1000)

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait so long for the event; raises TimeoutError when the deadline comes first."""
        left_ms = self.left_ms()
        if left_ms is None or left_ms >= seconds * 1000:
            event.wait(seconds)
        elif not event.wait(left_ms / 1000):
            self.expire()

    def expire(self) -> NoReturn:
        raise TimeoutError(f"the bus gave no answer within {self._timeout_seconds} s")


class _Call:
    """A block in which one thread is in a call. Raises RuntimeError while another one is, or waits
    for it if the connection is being closed."""

    def __init__(self) -> None:
        self.in_use = threading.RLock()
        """Held by that thread; its signal handlers may call, too."""
        self.is_closing = False
        """The connection is being closed."""

    def __enter__(self) -> None:
        if not self.in_use.acquire(False):
            if not self.is_closing:
                raise RuntimeError("another thread uses this connection: give each one of its own")
            self.in_use.acquire()

    def __exit__(self, *_: object) -> None:
        self.in_use.release()


class BlockingLink(Generic[Item]):
    """A link of one thread at a time."""

    def __init__(self, link: Link[Item]) -> None:
        self.link = link
        self.call = _Call()
        self._closing = threading.Event()
        """Set when another thread closes the connection."""

    def close(self) -> None:
        """Close the connection, also while another thread is in a call."""
        self.call.is_closing = True
        if not self.call.in_use.acquire(False):
            self.link.shut_down()
            self._closing.set()
            self.call.in_use.acquire()
        try:
            self.link.close()
        finally:
            self.call.in_use.release()

    def open(self, deadline: Deadline) -> None:
        """Connect, and greet the bus."""
        while not self.link.connect_nowait():
            if deadline.left_ms() == 0:
                deadline.expire()
            time.sleep(CONNECT_RETRY_SECONDS)
        for packet in self.link.greetings:
            self.send(packet, deadline)
        if self.link.can_reconnect:
            self.ask(self.link.barrier, deadline)  # later, a refusal may concern a packet

    def send(self, packet: bytes, deadline: Deadline, requests: Requests | None = None) -> int:
        """Send when the bus has room; returns the ticket if it is a request."""
        with self.call:
            while not self._try_to_send(packet, deadline):
                self._wait(select.POLLOUT, deadline)
            return self.link.note_request(packet, requests)

    def send_many(self, packets: Iterator[bytes], deadline: Deadline) -> None:
        """Send all of these, which are no requests, when the bus has room."""
        with self.call:
            while (packet := self.link.send_many_nowait(packets)) is not None:
                self.send(packet, deadline)

    def _try_to_send(self, packet: bytes, deadline: Deadline) -> bool:
        while True:
            try:
                return self.link.send_nowait(packet)
            except BrokenPipeError:
                self._find_reason(deadline)

    def ask(self, requests: Requests, deadline: Deadline) -> None:
        """Return when the bus has replied to a new request."""
        with self.call:
            while not self._ask_once(requests, deadline):
                pass
            self.link.inbox.raise_errors()

    def _ask_once(self, requests: Requests, deadline: Deadline) -> bool:
        """Whether the connection was not lost before the reply."""
        link = self.link
        ticket = self.send(requests.encode(), deadline, requests)
        before = link.interruptions
        try:
            while not requests.is_settled(ticket):
                link.inbox.raise_end()
                self.read(READ_PACKETS_MAX, deadline)
        finally:
            requests.abandon(ticket)
        return link.interruptions == before

    def take(self, queue: MessageQueue[Item], deadline: Deadline) -> Item:
        """The next item of this queue; waits until there is one."""
        with self.call:
            while (item := self.link.inbox.take_from(queue)) is None:
                self.read(READ_PACKETS_MAX, deadline)
        return item

    def take_many(self, queue: MessageQueue[Item], limit: int, deadline: Deadline) -> list[Item]:
        """Up to `limit` items of this queue; waits until there is one."""
        with self.call:
            while not (items := self.link.inbox.take_many_from(queue, limit)):
                self.read(limit, deadline)
        return items

    def read(self, packets_max: int, deadline: Deadline) -> None:
        """Return when something may have arrived."""
        if self.link.is_lost:
            self._reconnect(deadline)
        elif not self.link.read_nowait(packets_max):
            if self.link.is_mark_due:
                deadline.wait(self._closing, SEND_RETRY_SECONDS)
            else:
                self._wait(select.POLLIN, deadline)

    def read_ahead(self, packets_max: int) -> None:
        """Read what has arrived."""
        with self.call:
            if not self.link.is_lost:
                self.link.read_nowait(packets_max)

    def _wait(self, events: int, deadline: Deadline) -> None:
        poll = select.poll()
        poll.register(self.link.sock, events)
        if not poll.poll(deadline.left_ms()):
            deadline.expire()

    def _find_reason(self, deadline: Deadline) -> None:
        """The bus accepts nothing more; the reason may be the next packet that arrives. Returns
        when the connection has been made again, or raises the reason."""
        link, inbox = self.link, self.link.inbox
        soon = Deadline(REASON_SECONDS_MAX)
        with contextlib.suppress(TimeoutError):
            while not (inbox.ended or link.is_lost) and inbox.has_room:
                self.read(READ_PACKETS_MAX, soon)
        link.give_up()
        while link.is_lost:
            self.read(READ_PACKETS_MAX, deadline)

    def _reconnect(self, deadline: Deadline) -> None:
        for wait in self.link.reconnect():
            if wait == "readable":
                self._wait(select.POLLIN, deadline)
            else:
                deadline.wait(self._closing, wait)
