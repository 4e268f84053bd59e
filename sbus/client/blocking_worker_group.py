"""Sharing jobs with the other members of a group, for programs without an event loop."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from sbus.client import group_jobs
from sbus.client.blocking_link import BlockingLink, Deadline
from sbus.client.blocking_member_watch import list_members
from sbus.client.blocking_subscription import subscribed
from sbus.client.group_jobs import GroupJobs
from sbus.client.link import REASON_SECONDS_MAX
from sbus.client.message_queue import MessageQueue
from sbus.client.names import raise_refusal
from sbus.client.routes import spelling
from sbus.errors import Disconnected
from sbus.protocol.packets import SUBSCRIBE_WORD, encode_publish, encode_subscribe
from sbus.protocol.worker_groups import Group, done

MESSAGES_AT_ONCE = 1024


class Job:
    """A job of this member."""

    def __init__(self, io: BlockingLink[Any], jobs: GroupJobs, job: group_jobs.Job) -> None:
        self._io = io
        self._jobs = jobs
        self._job = job

    @property
    def place(self) -> int:
        """The job's place in the total order, which names it."""
        return self._job.place

    @property
    def key(self) -> bytes:
        return self._job.key

    @property
    def payload(self) -> bytes:
        return self._job.payload

    def done(self, *, timeout_seconds: float | None = None) -> None:
        """Tell the group. Until then, another member gets the job if this one goes away."""
        self._jobs.check_owned(self._job)
        packet = encode_publish(self._jobs.group.key, done(self.place))
        self._io.send(packet, Deadline(timeout_seconds))
        self._jobs.finish(self._job)


class WorkerGroup:
    """What `Connection.worker_group` opens; iterating over it receives this member's jobs.

    After an error other than PacketRefused and MessagesUnconfirmed there are no more: leave the
    block, so that the other members get the jobs, and begin another one.
    """

    def __init__(self, io: BlockingLink[Any], queue: MessageQueue[Any], jobs: GroupJobs) -> None:
        self._io = io
        self._queue = queue
        self._jobs = jobs

    def receive(self, *, timeout_seconds: float | None = None) -> Job:
        """The next job, which is this member's until it is `done`."""
        deadline = Deadline(timeout_seconds)
        if self._jobs.has_room:
            self._io.read_ahead(MESSAGES_AT_ONCE)
            self._feed(self._queue.take_many(MESSAGES_AT_ONCE), deadline)
        while (job := self._jobs.take()) is None:
            self._feed(self._io.take_many(self._queue, MESSAGES_AT_ONCE, deadline), deadline)
        return Job(self._io, self._jobs, job)

    def _feed(self, items: list[Any], deadline: Deadline) -> None:
        for item in items:
            self._jobs.feed(item)
        if self._jobs.must_answer:
            self._io.send(encode_publish(self._jobs.group.key, self._jobs.group.here), deadline)
            self._jobs.must_answer = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Job:
        try:
            return self.receive()
        except Disconnected:
            if self._io.link.closed:
                raise StopIteration from None
            raise


@contextmanager
def working(
    io: BlockingLink[Any], name: bytes, packets: list[bytes], deadline: Deadline
) -> Iterator[WorkerGroup]:
    """Be a member within the block, for the jobs that match these `SUB`."""
    link = io.link
    io.ask(link.barrier, deadline)
    patterns = (spelling(packet.removeprefix(SUBSCRIBE_WORD)) for packet in packets)
    group = Group(name, link.identity().uid, patterns)
    queue = link.new_queue("report")
    own = [encode_subscribe(group.key), encode_subscribe(group.presence)]
    with subscribed(io, [*packets, *own], queue, deadline):
        members = list_members(io, group.members, deadline, queue)
        bounds = {"jobs_max": link.queue_messages_max, "bytes_max": link.queue_bytes_max}
        jobs = GroupJobs(group, members, **bounds)
        try:
            _join(io, queue, jobs, deadline)
            yield WorkerGroup(io, queue, jobs)
        finally:
            jobs.close()
            _leave(io)


def _join(
    io: BlockingLink[Any], queue: MessageQueue[Any], jobs: GroupJobs, deadline: Deadline
) -> None:
    link = io.link
    request = link.inbox.names.join(jobs.name, None)
    io.ask(request, deadline)
    raise_refusal(request)
    io.send(encode_publish(jobs.group.key, jobs.group.hello), deadline)
    io.ask(link.barrier, deadline)
    for item in queue.take_many(len(queue) or 1):
        jobs.feed(item)
    jobs.check_joined()


def _leave(io: BlockingLink[Any]) -> None:
    request = io.link.inbox.names.leave()
    with suppress(Disconnected, TimeoutError):
        io.send(request.encode(), Deadline(REASON_SECONDS_MAX), request)
