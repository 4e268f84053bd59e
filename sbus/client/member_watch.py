"""The members of a bus, as a list and as a stream of changes."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sbus.client.message_queue import MessageQueue
from sbus.client.names import Roster, presence_pattern, read_members
from sbus.client.subscription import subscribed
from sbus.client.waiting_link import Receiving, WaitingLink
from sbus.protocol.packets import Message
from sbus.protocol.presence import Member, MemberChange


async def list_members(
    io: WaitingLink[Any], pattern: bytes | str, queue: MessageQueue[Any] | None = None
) -> list[Member]:
    """All members with such names. What is in this queue then comes behind the beginning of the
    list."""
    found: list[Member] = []
    has_more, clear = True, (lambda: None) if queue is None else queue.clear
    while has_more:
        after = found[-1] if found else None
        request = io.link.inbox.names.members(pattern, after, clear)
        await io.ask(request)
        piece, has_more = read_members(request)
        found += piece
        clear = lambda: None  # noqa: E731
    return found


class MemberWatch(Receiving[MemberChange]):
    """What `Connection.watch_members` opens; iterating over it receives changes.

    Nothing is missing in the end: where messages were lost, the bus is asked again who is there,
    and members that have gone meanwhile did so for the reason "unknown".
    """

    def __init__(
        self, io: WaitingLink[Any], pattern: bytes | str, queue: MessageQueue[Any]
    ) -> None:
        self._io = io
        self._pattern = pattern
        self._queue = queue
        self._roster = Roster()
        self._must_ask = True
        """Changes are missing, and the bus has not said since who is there."""
        self._changes: deque[MemberChange] = deque()

    def members(self) -> list[Member]:
        """Who is there, behind the change that was received last; sorted by user and name."""
        return self._roster.members()

    async def ask(self) -> list[MemberChange]:
        """Ask the bus who is there; returns what has changed. If that fails, `receive` asks."""
        members = await list_members(self._io, self._pattern, self._queue)
        self._must_ask = False
        return self._roster.replace(members)

    async def receive(self) -> MemberChange:
        """The next change."""
        while not self._changes:
            if self._must_ask:
                self._changes.extend(await self.ask())
                continue
            item = await self._io.take(self._queue)
            if isinstance(item, Message):
                change = self._roster.feed(item)
                self._changes.extend(() if change is None else (change,))
            else:
                self._must_ask = True
        return self._changes.popleft()


@asynccontextmanager
async def watching(io: WaitingLink[Any], pattern: bytes | str) -> AsyncIterator[MemberWatch]:
    """The members with such names, and changes of them, within the block."""
    packet = io.link.encoder.subscribe(presence_pattern(pattern))
    async with subscribed(io, [packet], io.link.new_queue("report")) as queue:
        watch = MemberWatch(io, pattern, queue)
        await watch.ask()
        yield watch
