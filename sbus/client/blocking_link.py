"""A connection that stops the thread while it waits, for programs without an event loop."""

import select
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

from sbus.client.link import READ_PACKETS_MAX, Link
from sbus.client.message_queue import Item, MessageQueue
from sbus.client.waiting_link import WaitingLink

NO_ANSWER = "the bus gave no answer"
NOTHING_CAME = "nothing came"
"""What has not happened when a call gives up."""
T = TypeVar("T")
Opened = TypeVar("Opened")


class Deadline:
    """The moment when a call gives up, if ever."""

    def __init__(self, timeout_seconds: float | None, missing: str = NO_ANSWER) -> None:
        self._timeout_seconds = timeout_seconds
        self._missing = missing
        self._at = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def or_after(self, seconds: float) -> "Deadline":
        """This one, or that after so many seconds if it is earlier."""
        left_ms = self.left_ms()
        is_earlier = left_ms is not None and left_ms <= seconds * 1000
        return self if is_earlier else Deadline(seconds, self._missing)

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
        raise TimeoutError(f"{self._missing} within {self._timeout_seconds} s")


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


class BlockingLink(WaitingLink[Item]):
    """A link of one thread at a time."""

    def __init__(self, link: Link[Item]) -> None:
        super().__init__(link)
        self.sending = self.preparing = nullcontext()
        self.call = _Call()
        link.after_fork = self._forget_other_threads
        self._deadline = Deadline(None)
        """Of the present call."""
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

    def _forget_other_threads(self) -> None:
        """In the child of a fork, a call of another thread never ends."""
        self.call = _Call()

    # -- calls ---------------------------------------------------------------------------------

    def run(
        self,
        call: Coroutine[Any, Any, T],
        timeout_seconds: float | None = None,
        missing: str = NO_ANSWER,
    ) -> T:
        """What this coroutine above this link returns. Raises TimeoutError, which says what is
        `missing`."""
        try:
            with self.call:
                before, self._deadline = self._deadline, Deadline(timeout_seconds, missing)
                try:
                    call.send(None)
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    self._deadline = before
        finally:
            call.close()
        raise AssertionError("it waits for something else than this link")

    def send_now(self, packet: bytes, timeout_seconds: float | None) -> None:
        """Send, without the cost of a coroutine if the bus has room."""
        with self.call, suppress(BrokenPipeError):
            if self.link.send_nowait(packet):
                return
        self.run(self.send(packet), timeout_seconds)

    def take_now(self, queue: MessageQueue[Item], timeout_seconds: float | None) -> Item:
        """Take an item, without the cost of a coroutine if one waits."""
        with self.call:
            item = self.link.inbox.take(queue)
        if item is not None:
            return item
        return self.run(self.take(queue), timeout_seconds, NOTHING_CAME)

    # -- the way of waiting --------------------------------------------------------------------

    @contextmanager
    def limit(self, seconds: float | None) -> Iterator[None]:
        before = self._deadline
        if seconds is not None:
            self._deadline = before.or_after(seconds)
        try:
            yield
        finally:
            self._deadline = before

    @contextmanager
    def give_up_after(self, seconds: float, *, shield: bool = False) -> Iterator[None]:
        """A call that has a timeout takes no longer than that, with `shield` neither: then only
        what needs no wait is done."""
        before = self._deadline
        with self.limit(seconds):
            try:
                yield
            except TimeoutError:
                if self._deadline is before and not shield:
                    raise

    async def checkpoint(self) -> None:
        """There are no other tasks."""

    async def wait_readable(self) -> None:
        self._wait(select.POLLIN)

    async def wait_to_send(self) -> None:
        if not self._wait(select.POLLIN | select.POLLOUT) & select.POLLOUT:
            self.link.read_nowait(READ_PACKETS_MAX)

    def _wait(self, events: int) -> int:
        """Returns the events that have come."""
        poll = select.poll()
        poll.register(self.link.sock, events)
        if not (ready := poll.poll(self._deadline.left_ms())):
            self._deadline.expire()
        return ready[0][1]

    async def pause(self, seconds: float) -> None:
        self._deadline.wait(self._closing, seconds)

    read = WaitingLink.read_alone


class Block(AbstractContextManager[Opened], Generic[T, Opened]):
    """A block of the asynchronous client, without an event loop."""

    def __init__(
        self,
        io: BlockingLink[Any],
        block: AbstractAsyncContextManager[T],
        make: Callable[[BlockingLink[Any], T], Opened],
        timeout_seconds: float | None = None,
    ) -> None:
        """What it gives is made from what the other block gives; the timeout is for entering."""
        self._io = io
        self._block = block
        self._make = make
        self._timeout_seconds = timeout_seconds

    def __enter__(self) -> Opened:
        return self._make(self._io, self._io.run(self._block.__aenter__(), self._timeout_seconds))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._io.run(self._block.__aexit__(kind, error, traceback))
