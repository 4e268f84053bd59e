"""Sharing jobs with the other members of a group."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sbus.client import group_jobs
from sbus.client.group_jobs import GroupJobs
from sbus.client.member_watch import list_members
from sbus.client.message_queue import MessageQueue
from sbus.client.names import raise_refusal
from sbus.client.routes import spelling
from sbus.client.subscription import subscribed
from sbus.client.waiting_link import Receiving, WaitingLink
from sbus.protocol.packets import SUBSCRIBE_WORD, encode_publish, encode_subscribe
from sbus.protocol.worker_groups import Group, done

MESSAGES_AT_ONCE = 1024


class Job:
    """A job of this member."""

    def __init__(self, io: WaitingLink[Any], jobs: GroupJobs, job: group_jobs.Job) -> None:
        self._io = io
        self._jobs = jobs
        self._job = job
        self.place = job.place
        """The job's place in the total order, which names it."""
        self.key = job.key
        self.payload = job.payload

    async def done(self) -> None:
        """Tell the group. Until then, another member gets the job if this one goes away."""
        self._jobs.check_owned(self._job)
        await self._io.send(encode_publish(self._jobs.group.key, done(self.place)))
        self._jobs.finish(self._job)


class WorkerGroup(Receiving[Job]):
    """What `Connection.worker_group` opens; iterating over it receives this member's jobs.

    After an error other than PacketRefused and MessagesUnconfirmed there are no more: leave the
    block, so that the other members get the jobs, and begin another one.
    """

    def __init__(self, io: WaitingLink[Any], queue: MessageQueue[Any], jobs: GroupJobs) -> None:
        self._io = io
        self._queue = queue
        self._jobs = jobs

    async def receive(self) -> Job:
        """The next job, which is this member's until it is `done`."""
        await self._io.checkpoint()
        if self._jobs.has_room:
            self._io.read_ahead(MESSAGES_AT_ONCE)
            await self._feed(self._queue.take_many(MESSAGES_AT_ONCE))
        while (job := self._jobs.take()) is None:
            await self._feed(await self._io.take_many(self._queue, MESSAGES_AT_ONCE))
        return Job(self._io, self._jobs, job)

    async def _feed(self, items: list[Any]) -> None:
        for item in items:
            self._jobs.feed(item)
        if self._jobs.must_answer:
            await self._io.send(encode_publish(self._jobs.group.key, self._jobs.group.here))
            self._jobs.must_answer = False


@asynccontextmanager
async def working(
    io: WaitingLink[Any], name: bytes, packets: list[bytes]
) -> AsyncIterator[WorkerGroup]:
    """Be a member within the block, for the jobs that match these `SUB`."""
    link = io.link
    await io.ask(link.barrier)
    patterns = (spelling(packet.removeprefix(SUBSCRIBE_WORD)) for packet in packets)
    group = Group(name, link.identity().uid, patterns)
    queue = link.new_queue("report")
    own = [encode_subscribe(group.key), encode_subscribe(group.presence)]
    async with subscribed(io, [*packets, *own], queue):
        members = await list_members(io, group.members, queue)
        bounds = {"jobs_max": link.queue_messages_max, "bytes_max": link.queue_bytes_max}
        jobs = GroupJobs(group, members, **bounds)
        try:
            await _join(io, queue, jobs)
            yield WorkerGroup(io, queue, jobs)
        finally:
            jobs.close()
            leave = link.inbox.names.leave()
            await io.send_at_end(leave.encode(), requests=leave)


async def _join(io: WaitingLink[Any], queue: MessageQueue[Any], jobs: GroupJobs) -> None:
    link = io.link
    request = link.inbox.names.join(jobs.name, None)
    await io.ask(request)
    raise_refusal(request)
    await io.confirm_together([encode_publish(jobs.group.key, jobs.group.hello)])
    link.inbox.raise_errors()
    for item in queue.take_many(len(queue) or 1):
        jobs.feed(item)
    jobs.check_joined()
