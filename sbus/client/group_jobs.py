"""The jobs of a worker group, as one of its members knows them. It does no input or output.

All members receive jobs, joins, leaves and reports of done jobs in the same order. A job is known
to the clients that were members at its place. Those of them that are still members have a score for
the job, a digest of the job's place and the member's client number; the one with the highest score
is the owner. So all of them agree on the owner without a message. A join changes nothing for
earlier jobs. A leave gives new owners only to the jobs of the member that left. Source: rendezvous
hashing (Thaler and Ravishankar 1998).
"""

import heapq
import os
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from sbus.client.inbox import InboxFull
from sbus.client.message_queue import Lost
from sbus.errors import ConfigurationError, GroupRefused, SbusError
from sbus.protocol.packets import Message, Sender
from sbus.protocol.presence import Member, parse_change
from sbus.protocol.presence_keys import PRESENCE
from sbus.protocol.worker_groups import ID_BYTES, Group, is_hello, is_here, parse_done

_LONG_AGO = -1
"""A place before that of any job that this member knows."""


class Job(msgspec.Struct, frozen=True):
    """A message that is a job; its place in the total order names it."""

    place: int
    key: bytes
    payload: bytes


class _Held(msgspec.Struct):
    """A job that is not done."""

    job: Job
    owner: int
    """The client number of a member."""


class GroupJobs:
    """Those that one member knows and that are not done."""

    def __init__(
        self, group: Group, members: Iterable[Member], *, jobs_max: int, bytes_max: int
    ) -> None:
        """The client receives everything behind the place at which these were the members, and
        takes its `name` then."""
        self.name = group.member_name(os.urandom(ID_BYTES))
        self.group = group
        self._jobs_max = jobs_max
        self._bytes_max = bytes_max
        self._since: dict[int, int] = {}
        """The place at which each member joined, by its client number."""
        for member in members:
            if group.has_member(member.uid, member.name):
                self._since[member.client] = _LONG_AGO
        self._own: int | None = None
        """The client number of this member, once it is one."""
        self._is_heard = False
        self.must_answer = False
        """Another member has said `hello`: say `here`, so that it learns what it cannot see."""
        self._held: dict[int, _Held] = {}
        self._bytes = 0
        """Of keys and payloads."""
        self._ready: list[int] = []
        """A heap of the places of this member's jobs that the program has not taken."""
        self._error: SbusError | None = None

    # -- what the member receives --------------------------------------------------------------
    def feed(self, item: Message | Lost) -> None:
        """Take in what comes next. After an error there is no other job, only the same error.

        Raises MessagesLost, InboxFull if there are too many jobs, GroupRefused, and
        ConfigurationError without senders.
        """
        self._raise_error()
        try:
            self._feed(item)
        except SbusError as error:
            self._error = error
            raise

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _feed(self, item: Message | Lost) -> None:
        if isinstance(item, Lost):
            raise item.error()
        if item.sender is None:
            raise ConfigurationError("a worker group needs connect(sender=True)")
        if item.key.startswith(PRESENCE):
            self._feed_change(item, item.sender.place)
        elif item.key == self.group.key:
            self._feed_word(item, item.sender)
        elif self._own is not None:
            self._add(Job(item.sender.place, item.key, item.payload))

    def _feed_change(self, message: Message, place: int) -> None:
        change = parse_change(message)
        member = change.member
        if not self.group.has_member(member.uid, member.name):
            return
        if change.reason is None:
            self._since[member.client] = place
            if member.name == self.name:
                self._own = member.client
        elif self._since.pop(member.client, None) is not None and self._own is not None:
            self._hand_over(member.client)

    def _hand_over(self, gone: int) -> None:
        """Find new owners for the jobs of a member that has left."""
        if gone == self._own:
            raise GroupRefused("this client is no member any more: it has lost its name")
        for place, held in self._held.items():
            if held.owner == gone:
                held.owner = self._owner_of(place)
                if held.owner == self._own:
                    heapq.heappush(self._ready, place)

    def _feed_word(self, message: Message, sender: Sender) -> None:
        if sender.uid != self.group.uid:
            return
        if sender.client not in self._since:
            raise GroupRefused(f"this client cannot see the member that is client {sender.client}")
        place = parse_done(message)
        if place is not None:
            held = self._held.get(place)
            if held is not None and held.owner == sender.client:
                self._forget(place)
        elif is_hello(message):
            self._is_heard = self._is_heard or sender.client == self._own
            self.must_answer = self._own not in (None, sender.client)
        elif is_here(message) and message.payload != self.group.here:
            raise GroupRefused("the other members of the group have other patterns for its jobs")

    def _add(self, job: Job) -> None:
        self._bytes += len(job.key) + len(job.payload)
        if len(self._held) >= self._jobs_max or self._bytes > self._bytes_max:
            raise InboxFull(
                f"{len(self._held)} jobs ({self._bytes} bytes) of the group are not done: publish "
                "them more slowly, or connect with a larger inbox_messages_max and inbox_bytes_max"
            )
        self._held[job.place] = _Held(job, self._owner_of(job.place))
        if self._held[job.place].owner == self._own:
            heapq.heappush(self._ready, job.place)

    @property
    def has_room(self) -> bool:
        """Whether to read on while there are jobs to do: half of the bounds are for the time after
        them, in which others' jobs are only known to be done by reading."""
        return 2 * len(self._held) < self._jobs_max and 2 * self._bytes < self._bytes_max

    def _owner_of(self, place: int) -> int:
        """Of those that know this job; one is this member itself."""
        knowing = (client for client, since in self._since.items() if since < place)
        return max(knowing, key=lambda client: _score(place, client))

    def check_joined(self) -> None:
        """Raise GroupRefused unless this member has seen its own name and heard itself."""
        if self._own is None:
            raise GroupRefused("this client cannot see the names of the group's members")
        if not self._is_heard:
            raise GroupRefused("this client cannot hear itself: it may have sent echo/off")

    # -- what the program does -----------------------------------------------------------------
    def take(self) -> Job | None:
        """The next job of this member, the earliest first; None if there is none yet."""
        self._raise_error()
        return self._held[heapq.heappop(self._ready)].job if self._ready else None

    def check_owned(self, job: Job) -> None:
        """Raise RuntimeError unless this member owns the job."""
        held = self._held.get(job.place)
        if held is None or held.owner != self._own:
            raise RuntimeError("this job is done already, or its member has left the group")

    def finish(self, job: Job) -> None:
        """This member has told that the job, which it owns, is done."""
        self._forget(job.place)

    def close(self) -> None:
        """The client leaves the group."""
        self._own = None
        self._held.clear()
        self._ready.clear()
        self._bytes = 0

    def _forget(self, place: int) -> None:
        job = self._held.pop(place).job
        self._bytes -= len(job.key) + len(job.payload)

    def owners(self) -> dict[int, int]:
        """The client number of the owner of each job, by the job's place."""
        return {place: held.owner for place, held in self._held.items()}

    def check_invariants(self) -> None:
        """bytes == Σ bytes of the jobs held; ready ⊆ own jobs; every owner is a member."""
        jobs = [held.job for held in self._held.values()]
        assert self._bytes == sum(len(job.key) + len(job.payload) for job in jobs)
        assert all(self._held[place].owner == self._own for place in self._ready)
        assert all(held.owner in self._since for held in self._held.values())


def _score(place: int, client: int) -> bytes:
    return blake2b(b"%d %d" % (place, client), digest_size=8).digest()
