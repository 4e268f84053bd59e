"""Who is there, for programs without an event loop."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from sbus.client.blocking_link import BlockingLink, Deadline
from sbus.client.blocking_subscription import subscribed
from sbus.client.message_queue import MessageQueue
from sbus.client.names import Roster, presence_pattern, read_members
from sbus.errors import Disconnected
from sbus.protocol.packets import Message
from sbus.protocol.presence import Member, MemberChange


def list_members(
    io: BlockingLink[Any],
    pattern: bytes | str,
    deadline: Deadline,
    queue: MessageQueue[Any] | None = None,
) -> list[Member]:
    """All members with such names. What is in this queue then comes behind the beginning of the
    list."""
    found: list[Member] = []
    has_more, clear = True, (lambda: None) if queue is None else queue.clear
    while has_more:
        after = found[-1] if found else None
        request = io.link.inbox.names.members(pattern, after, clear)
        io.ask(request, deadline)
        piece, has_more = read_members(request)
        found += piece
        clear = lambda: None  # noqa: E731
    return found


class MemberWatch:
    """What `Connection.watch_members` opens; iterating over it receives changes.

    Nothing is missing in the end: where messages were lost, the bus is asked again who is there,
    and members that have gone meanwhile did so for the reason "unknown".
    """

    def __init__(
        self, io: BlockingLink[Any], pattern: bytes | str, queue: MessageQueue[Any]
    ) -> None:
        self._io = io
        self._pattern = pattern
        self._queue = queue
        self._roster = Roster()
        self._changes: deque[MemberChange] = deque()

    def members(self) -> list[Member]:
        """Who is there, behind the change that was received last; sorted by user and name."""
        return self._roster.members()

    def ask(self, deadline: Deadline) -> list[MemberChange]:
        """Ask the bus who is there; returns what has changed."""
        return self._roster.replace(list_members(self._io, self._pattern, deadline, self._queue))

    def receive(self, *, timeout_seconds: float | None = None) -> MemberChange:
        """The next change."""
        deadline = Deadline(timeout_seconds)
        while not self._changes:
            item = self._io.take(self._queue, deadline)
            if isinstance(item, Message):
                change = self._roster.feed(item)
                self._changes.extend(() if change is None else (change,))
            else:
                self._changes.extend(self.ask(deadline))
        return self._changes.popleft()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MemberChange:
        try:
            return self.receive()
        except Disconnected:
            if self._io.link.closed:
                raise StopIteration from None
            raise


@contextmanager
def watching(
    io: BlockingLink[Any], pattern: bytes | str, deadline: Deadline
) -> Iterator[MemberWatch]:
    """The members with such names, and changes of them, within the block."""
    packet = io.link.encoder.subscribe(presence_pattern(pattern))
    with subscribed(io, [packet], io.link.new_queue("report"), deadline) as queue:
        watch = MemberWatch(io, pattern, queue)
        watch.ask(deadline)
        yield watch
