"""Streams of a blocking connection: of messages, of requests, of members and of jobs.

Each does the same as the asynchronous one of its name."""

from abc import ABC, abstractmethod
from typing import Any, Generic, Self, TypeVar

from sbus.client import member_watch, request_reply, subscription, worker_group
from sbus.client.blocking_link import NOTHING_CAME, BlockingLink
from sbus.client.message_queue import Item
from sbus.errors import Disconnected
from sbus.protocol.presence import Member, MemberChange

T = TypeVar("T")
Link = BlockingLink[Any]


class Receiving(ABC, Generic[T]):
    """Something to receive from with `for`, which ends when this program closes the connection."""

    _io: Link

    @abstractmethod
    def receive(self, *, timeout_seconds: float | None = None) -> T:
        """The next one."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return self.receive()
        except Disconnected:
            if self._io.link.closed:
                raise StopIteration from None
            raise


class Subscription(Receiving[Item]):
    """What `Connection.subscription` opens; iterating over it receives messages.

    A gap is where the bus has dropped messages for the connection, as it may concern every
    subscription, or where the program has not taken them soon enough.
    """

    def __init__(self, io: BlockingLink[Item], stream: subscription.Subscription[Item]) -> None:
        self._io: BlockingLink[Item] = io
        self._queue = stream.queue

    def receive(self, *, timeout_seconds: float | None = None) -> Item:
        """The next message; raises the same as that of the connection."""
        return self._io.take_now(self._queue, timeout_seconds)

    def receive_many(
        self, limit: int = 1024, *, timeout_seconds: float | None = None
    ) -> list[Item]:
        """Up to `limit` (at least 1) messages; waits until there is one."""
        return self._io.run(self._io.take_many(self._queue, limit), timeout_seconds, NOTHING_CAME)


class Request:
    """A request of another client."""

    def __init__(self, io: Link, request: request_reply.Request) -> None:
        self._io = io
        self._request = request
        self.key = request.key
        """What it was published with."""
        self.payload = request.payload

    def reply(self, payload: bytes | str = b"", *, timeout_seconds: float | None = None) -> None:
        """Answer it; of several answers the requester gets the first. An answer that is too long
        for a packet fails the request."""
        self._io.run(self._request.reply(payload), timeout_seconds)

    def fail(self, text: str, *, timeout_seconds: float | None = None) -> None:
        """Say why there is no answer, in at most 4,096 bytes; the requester's call raises
        RequestFailed."""
        self._io.run(self._request.fail(text), timeout_seconds)


class RequestStream(Receiving[Request]):
    """What `Connection.requests` opens; iterating over it receives requests.

    No gap is raised, as the requester learns that its request was lost; and no refusal of an
    answer, as a requester chooses where its answer goes.
    """

    def __init__(self, io: Link, stream: request_reply.RequestStream) -> None:
        self._io = io
        self._stream = stream

    def receive(self, *, timeout_seconds: float | None = None) -> Request:
        """The next request. Messages that are none are passed over."""
        return Request(
            self._io, self._io.run(self._stream.receive(), timeout_seconds, NOTHING_CAME)
        )


class MemberWatch(Receiving[MemberChange]):
    """What `Connection.watch_members` opens; iterating over it receives changes.

    Nothing is missing in the end: where messages were lost, the bus is asked again who is there,
    and members that have gone meanwhile did so for the reason "unknown".
    """

    def __init__(self, io: Link, watch: member_watch.MemberWatch) -> None:
        self._io = io
        self._watch = watch

    def members(self) -> list[Member]:
        """Who is there, behind the change that was received last; sorted by user and name."""
        return self._watch.members()

    def receive(self, *, timeout_seconds: float | None = None) -> MemberChange:
        """The next change."""
        return self._io.run(self._watch.receive(), timeout_seconds, NOTHING_CAME)


class Job:
    """A job of this member."""

    def __init__(self, io: Link, job: worker_group.Job) -> None:
        self._io = io
        self._job = job
        self.place = job.place
        """The job's place in the total order, which names it."""
        self.key = job.key
        self.payload = job.payload

    def done(self, *, timeout_seconds: float | None = None) -> None:
        """Tell the group. Until then, another member gets the job if this one goes away."""
        self._io.run(self._job.done(), timeout_seconds)


class WorkerGroup(Receiving[Job]):
    """What `Connection.worker_group` opens; iterating over it receives this member's jobs.

    After an error other than PacketRefused and MessagesUnconfirmed there are no more: leave the
    block, so that the other members get the jobs, and begin another one.
    """

    def __init__(self, io: Link, group: worker_group.WorkerGroup) -> None:
        self._io = io
        self._group = group

    def receive(self, *, timeout_seconds: float | None = None) -> Job:
        """The next job, which is this member's until it is `done`."""
        return Job(self._io, self._io.run(self._group.receive(), timeout_seconds, NOTHING_CAME))
