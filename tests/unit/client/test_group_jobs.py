"""Jobs of a worker group: who owns which, in every order of joins, leaves, jobs and delays."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.client.group_jobs import GroupJobs, Job
from sbus.client.inbox import InboxFull
from sbus.client.message_queue import Lost
from sbus.errors import ConfigurationError, GroupRefused, MessagesLost, PacketRefused
from sbus.protocol.packets import Message, Sender, parse_server_packet
from sbus.protocol.presence import LEFT, Member
from sbus.protocol.worker_groups import ID_BYTES, Group, done

UID, GID = 7, 8
JOBS = (b"jobs",)
GROUP = Group(b"resizers", UID, JOBS)
MANY = 10_000
PUBLISHER = 99
"""The client number of the program that publishes jobs."""


def new_jobs(*members: Member, jobs_max: int = MANY, bytes_max: int = MANY) -> GroupJobs:
    return GroupJobs(GROUP, members, jobs_max=jobs_max, bytes_max=bytes_max)


@dataclass
class Worker:
    """A member that reads the common stream at its own pace."""

    member: Member
    jobs: GroupJobs
    position: int
    """Of what it reads next."""
    in_hand: Job | None = None


@dataclass
class World:
    """The one order of a bus, and the members that follow it."""

    stream: list[Message] = field(default_factory=list)
    workers: dict[int, Worker] = field(default_factory=dict)
    """Those that live, by their client numbers."""
    clients: int = 0
    knowing: dict[int, set[int]] = field(default_factory=dict)
    """By the place of each job: the members of then that live. The oracle."""
    begun: Counter[int] = field(default_factory=Counter)
    """How often somebody began a job, not counting those who died with it in their hands."""
    done: set[int] = field(default_factory=set)

    def say(self, packet: bytes, client: int, uid: int = UID) -> None:
        message = parse_server_packet(packet)
        assert isinstance(message, Message)
        sender = Sender(len(self.stream), client, GID, uid, client)
        self.stream.append(Message(message.key, message.payload, sender))

    def join(self) -> None:
        self.clients += 1
        jobs = new_jobs(*(worker.member for worker in self.workers.values()))
        member = Member(UID, jobs.name, self.clients, GID, self.clients)
        self.workers[self.clients] = Worker(member, jobs, len(self.stream))
        self.say(member.join_message(), self.clients)
        self.say(b"MSG %b\0%b" % (GROUP.key, GROUP.hello), self.clients)

    def leave(self, worker: Worker) -> None:
        del self.workers[worker.member.client]
        if worker.in_hand is not None:
            self.begun[worker.in_hand.place] -= 1
        for knowing in self.knowing.values():
            knowing.discard(worker.member.client)
        self.say(worker.member.leave_message(LEFT), worker.member.client)

    def publish(self) -> None:
        self.knowing[len(self.stream)] = set(self.workers)
        self.say(b"MSG jobs\0x", PUBLISHER)

    def read(self, worker: Worker, count: int) -> None:
        for message in self.stream[worker.position : worker.position + count]:
            worker.jobs.feed(message)
            worker.position += 1
        worker.jobs.check_invariants()

    def take(self, worker: Worker) -> None:
        if worker.in_hand is None:
            worker.in_hand = worker.jobs.take()
            if worker.in_hand is not None:
                self.begun[worker.in_hand.place] += 1

    def finish(self, worker: Worker) -> None:
        if worker.in_hand is not None:
            worker.jobs.check_owned(worker.in_hand)
            self.done.add(worker.in_hand.place)
            self.say(b"MSG %b\0%b" % (GROUP.key, done(worker.in_hand.place)), worker.member.client)
            worker.jobs.finish(worker.in_hand)
            worker.in_hand = None

    def settle(self) -> None:
        """Everybody reads and works until nothing is left to do."""
        is_busy = True
        while is_busy:
            for worker in self.workers.values():
                self.read(worker, len(self.stream))
            self.check_owners()
            for worker in self.workers.values():
                self.take(worker)
            is_busy = any(worker.in_hand is not None for worker in self.workers.values())
            for worker in self.workers.values():
                self.finish(worker)

    def check_owners(self) -> None:
        """Where all have read everything, each job that is not done has one living owner, of those
        who know it, and they agree."""
        views = {client: worker.jobs.owners() for client, worker in self.workers.items()}
        for place, knowing in self.knowing.items():
            owners = {client: views[client].get(place) for client in knowing}
            if place in self.done:
                assert set(owners.values()) <= {None}
            elif knowing:
                assert len(set(owners.values())) == 1
                assert set(owners.values()) <= knowing
        for client, view in views.items():
            assert all(client in self.knowing[place] for place in view)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("join", "leave", "publish", "publish", "read", "take", "finish")),
        st.integers(0, 7),
        st.integers(1, 5),
    ),
    min_size=20,
    max_size=60,
)
"""What happens, to which of the members, and how much they read."""


@given(steps=STEPS)
def test_each_job_is_done_once_but_for_those_in_dead_hands(
    steps: list[tuple[str, int, int]],
) -> None:
    world = World()
    for _ in range(3):
        world.join()
    for step, which, count in steps:
        if step == "join":
            world.join()
        elif step == "publish":
            world.publish()
        elif world.workers:
            worker = list(world.workers.values())[which % len(world.workers)]
            if step == "read":
                world.read(worker, count)
            else:
                getattr(world, step)(worker)
    world.settle()
    for place, knowing in world.knowing.items():
        assert not knowing or place in world.done
        assert world.begun[place] == (place in world.done)


def test_jobs_are_shared_by_all() -> None:
    world = World()
    for _ in range(3):
        world.join()
    for _ in range(300):
        world.publish()
    for worker in world.workers.values():
        world.read(worker, MANY)
    shares = Counter(next(iter(world.workers.values())).jobs.owners().values())
    assert shares.keys() == set(world.workers)
    assert min(shares.values()) > 60


def test_a_leave_moves_no_jobs_of_others() -> None:
    world = World()
    for _ in range(4):
        world.join()
    for _ in range(50):
        world.publish()
    watcher = world.workers[1]
    world.read(watcher, MANY)
    before = watcher.jobs.owners()
    world.leave(world.workers[2])
    world.join()
    world.read(watcher, MANY)
    after = watcher.jobs.owners()
    assert {place for place in before if before[place] != after[place]} == {
        place for place, owner in before.items() if owner == 2
    }


@pytest.fixture
def world() -> World:
    """One member, which has read of two jobs."""
    world = World()
    world.join()
    world.publish()
    world.publish()
    world.read(world.workers[1], MANY)
    return world


class TestFaults:
    def test_a_gap_ends_it(self, world: World) -> None:
        jobs = world.workers[1].jobs
        with pytest.raises(MessagesLost):
            jobs.feed(Lost(1))
        with pytest.raises(MessagesLost):
            jobs.take()

    def test_too_many_jobs_end_it(self, world: World) -> None:
        for bounds in ({"jobs_max": 1}, {"bytes_max": 9}):
            jobs = new_jobs(world.workers[1].member, **bounds)
            own = Member(UID, jobs.name, 1, GID, 1)
            joined = parse_server_packet(own.join_message())
            assert isinstance(joined, Message)
            jobs.feed(Message(joined.key, joined.payload, Sender(0, 1, GID, UID, 1)))
            jobs.feed(Message(b"jobs", b"x", Sender(1, 2, GID, UID, 1)))
            with pytest.raises(InboxFull, match="are not done"):
                jobs.feed(Message(b"jobs", b"x", Sender(2, 2, GID, UID, 1)))

    def test_a_message_without_a_sender_ends_it(self, world: World) -> None:
        with pytest.raises(ConfigurationError, match="sender=True"):
            world.workers[1].jobs.feed(Message(b"jobs", b"x"))

    def test_a_member_that_cannot_be_seen_ends_it(self, world: World) -> None:
        world.say(b"MSG %b\0%b" % (GROUP.key, GROUP.hello), client=55)
        with pytest.raises(GroupRefused, match="client 55"):
            world.read(world.workers[1], MANY)

    def test_members_answer_a_new_one(self, world: World) -> None:
        first = world.workers[1].jobs
        assert not first.must_answer
        world.join()
        for worker in world.workers.values():
            world.read(worker, MANY)
        assert [worker.jobs.must_answer for worker in world.workers.values()] == [True, False]

    def test_another_user_says_nothing(self, world: World) -> None:
        job = world.workers[1].jobs.take()
        assert job is not None
        for client in (1, 55):
            world.say(b"MSG %b\0%b" % (GROUP.key, done(job.place)), client, uid=UID + 1)
        world.read(world.workers[1], MANY)
        assert job.place in world.workers[1].jobs.owners()

    def test_only_the_owner_says_that_a_job_is_done(self, world: World) -> None:
        world.join()
        place = next(iter(world.workers[1].jobs.owners()))
        world.say(b"MSG %b\0%b" % (GROUP.key, done(place)), client=2)
        world.read(world.workers[1], MANY)
        assert place in world.workers[1].jobs.owners()

    def test_a_job_is_done_once_and_by_a_member(self, world: World) -> None:
        jobs = world.workers[1].jobs
        first, second = jobs.take(), jobs.take()
        assert first is not None
        assert second is not None
        jobs.check_owned(first)
        jobs.finish(first)
        with pytest.raises(RuntimeError):
            jobs.check_owned(first)
        jobs.close()
        with pytest.raises(RuntimeError):
            jobs.check_owned(second)

    def test_whoever_loses_its_name_is_no_member(self, world: World) -> None:
        worker = world.workers[1]
        world.leave(worker)
        with pytest.raises(GroupRefused, match="no member any more"):
            world.read(worker, MANY)

    def test_who_does_not_see_itself_is_refused(self, world: World) -> None:
        world.workers[1].jobs.check_joined()
        with pytest.raises(GroupRefused, match="cannot see"):
            new_jobs().check_joined()


class TestNames:
    def test_are_those_of_the_group(self) -> None:
        member_id = bytes(ID_BYTES)
        assert GROUP.has_member(UID, GROUP.member_name(member_id))
        assert not GROUP.has_member(UID + 1, GROUP.member_name(member_id))
        for group in (b"resizer", b"resizers.0123456789abcdef"):
            assert not GROUP.has_member(UID, Group(group, UID, JOBS).member_name(member_id))

    def test_do_not_depend_on_the_order_of_patterns(self) -> None:
        assert Group(b"g", UID, [b"a", b"b"]).here == Group(b"g", UID, [b"b", b"a", b"b"]).here

    @pytest.mark.parametrize("name", [b"a/b", b"x" * 48, b"a*"])
    def test_have_a_form(self, name: bytes) -> None:
        Group(b"x" * 47, UID, JOBS)
        with pytest.raises(PacketRefused, match="bad-name"):
            Group(name, UID, JOBS)
