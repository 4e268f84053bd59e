"""Clients that block, flip their policies, misbehave and leave, through whole workers.

Whatever they do, a client that only ever blocked has every message of its own user's publishers,
each publisher's in its order; and once all have left, nothing is counted, held, waited for or
stalled.
"""

import random
from collections import Counter, defaultdict

import msgspec
import pytest

from sbus.shared.accounts import BACKLOG_BYTES, BUS, HOLDING, SUBSCRIPTION_BYTES, SUBSCRIPTIONS
from sbus.unix.credentials import Credentials
from tests.fuzz.one_process_bus import WORKERS, OneProcessBus, Peer, one_process_bus
from tests.fuzz.packets import LIMITS

LIMITS_HERE = msgspec.structs.replace(
    LIMITS,
    backlog_messages_max=20,
    backlog_bytes_max=10_000,
    user_held_seconds_max=1e6,
    blocking_clients_max=6,
    client_subscription_bytes_max=100_000,
    route_cache_bytes_max=4096,
)
SMALL_BUFFER_BYTES = 4608
UIDS = (1000, 1001)
STEPS = 120
KEYS = [b"k", b"k/a", b"k/b", b"other"]
CHOICES = [
    *(b"blocking/soft/" + soft for soft in (b"queue", b"discard", b"block", b"block", b"error")),
    *(b"blocking/hard/" + hard for hard in (b"discard", b"block", b"block", b"error")),
    *(b"order/" + order for order in (b"queue", b"stack", b"random")),
    *(b"echo/on", b"echo/off", b"!/notices/on"),
]
PATTERNS = [b"k", b"k/", b"", b"k/*", b"nothing"]
NOISE = b"MSG k\0x"
STEADY = [[b"blocking/soft/block"], [b"blocking/hard/block"]]


class Actor:
    """A client's end: what it is for, what it may expect, what it got."""

    def __init__(self, peer: Peer, uid: int, *, steady: bool) -> None:
        self.peer = peer
        self.uid = uid
        self.steady = steady
        """It blocks and listens to everything from its beginning, and misbehaves in nothing."""
        self.got: list[bytes] = []
        self.joined_at: dict[int, int] = {}
        """How many messages each publisher had sent when it had joined."""

    def read(self, packets_max: int = 1_000_000) -> bool:
        """Whether there was anything."""
        got = self.peer.read(packets_max)
        self.got += [it for it in got if it.startswith(b"MSG ") and it != NOISE]
        return bool(got)


class Crowd:
    """The clients of one bus, and chance."""

    def __init__(self, bus: OneProcessBus, seed: int) -> None:
        self.bus = bus
        self.random = random.Random(seed)
        self.readers: list[Actor] = []
        self.publishers: list[Actor] = []
        self.sent: dict[int, list[bytes]] = defaultdict(list)
        """What each publisher got off, by its number."""

    def connect(self, *, small: bool = True) -> tuple[Peer, int]:
        uid = self.random.choice(UIDS)
        own = Credentials(gid=100, uid=uid, pid=4711)
        worker = self.random.randrange(WORKERS)
        return self.bus.connect(worker, own, SMALL_BUFFER_BYTES if small else None), uid

    def join(self, *, steady: bool) -> None:
        peer, uid = self.connect()
        actor = Actor(peer, uid, steady=steady)
        choices = self.random.choice(STEADY) if steady else self.random.sample(CHOICES, 2)
        for choice in choices:
            peer.send(b"CMSG " + choice)
        peer.send(b"SUB " if steady else b"SUB " + self.random.choice(PATTERNS))
        actor.joined_at = {number: len(sent) for number, sent in self.sent.items()}
        self.readers.append(actor)

    def begin_to_publish(self) -> None:
        peer, uid = self.connect(small=False)
        self.publishers.append(Actor(peer, uid, steady=False))

    def publish(self, actor: Actor) -> None:
        """A burst, or as much as the socket takes while it is not read."""
        number = actor.peer.number
        for _ in range(self.random.choice([1, 5, 30])):
            key = self.random.choice(KEYS)
            packet = b"MSG %b\0%d %d " % (key, number, len(self.sent[number]))
            packet += bytes(self.random.choice([0, 50, 3_000]))
            try:
                actor.peer.send(packet)
            except BlockingIOError:
                return
            self.sent[number].append(packet)

    def act(self) -> None:
        pick = self.random.choice
        what = pick(["publish"] * 6 + ["read"] * 4 + ["flip"] * 3 + ["rest"] * 3)
        others = [actor for actor in self.readers if not actor.steady]
        if what == "publish":
            self.publish(pick(self.publishers))
        elif what == "read":
            pick(self.readers).read(pick([1, 5, 100]))
        elif others and what == "flip":
            self.unsettle(pick(others))
        elif self.random.random() < 0.3:
            self.join(steady=False)
        elif others and self.random.random() < 0.3:
            self.drop(pick(others))

    def unsettle(self, actor: Actor) -> None:
        """An action that must not affect other clients, or that is forbidden."""
        packets = [
            b"CMSG " + self.random.choice(CHOICES) for _ in range(self.random.choice([1, 9]))
        ]
        packets.append(self.random.choice([b"SUB ", b"UNSUB "]) + self.random.choice(PATTERNS))
        packets += [NOISE] * self.random.choice([0, 30])
        packets.append(self.random.choice([NOISE, b"CMSG !/cred/whoami", b"wrong", b"SUB k"]))
        for packet in packets:
            try:
                actor.peer.send(packet)
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                return

    def drop(self, actor: Actor) -> None:
        """It leaves, with or without having read what it got."""
        self.readers.remove(actor)
        actor.peer.close()

    def settle(self) -> None:
        """All clients read until no publisher is held."""
        self.bus.settle()
        while any(actor.read() for actor in self.readers):
            self.bus.settle()

    def check_received(self) -> None:
        for actor in self.readers:
            if not actor.steady:
                continue
            got: dict[int, list[bytes]] = defaultdict(list)
            for packet in actor.got:
                number = int(packet.partition(b"\0")[2].split(b" ")[0])
                got[number].append(packet)
            for publisher in self.publishers:
                number = publisher.peer.number
                due = self.sent[number][actor.joined_at.get(number, 0) :]
                if publisher.uid == actor.uid:
                    assert got[number] == due
                else:
                    assert not Counter(got[number]) - Counter(due)
                    places = [due.index(packet) for packet in got[number]]
                    assert places == sorted(places)


def check_nothing_is_left(bus: OneProcessBus) -> None:
    """Every charge was given back."""
    kinds = (SUBSCRIPTIONS, SUBSCRIPTION_BYTES, BACKLOG_BYTES, HOLDING)
    for place in (BUS, *bus.book._places.values()):
        assert [bus.book[place].use(kind) for kind in kinds] == [0] * len(kinds)
    for worker in bus.workers:
        waiting, subscriptions = worker.wait_queue, worker.subscriptions
        stalls, router = worker.context.stalls, worker.router
        assert not list(worker.sessions)
        assert not stalls.any_stalled()
        assert len(stalls._free) == LIMITS_HERE.blocking_clients_max
        for left in (waiting._waits, waiting._wakeable, waiting._queues, waiting._account_of_stall):
            assert not left
        assert not any([waiting._holding, waiting._next_of_user, waiting.waiting_bytes])
        background = subscriptions._background
        assert not any([background._changes, background._stuck])
        assert not any([subscriptions._unrecorded, subscriptions._watched._accounts])
        statistics = router._index.statistics()
        assert (statistics.nodes, statistics.subscriptions) == (1, 0)
        assert not router._interest
        assert not any(router._remote_rules.values())


def campaign(seed: int) -> int:
    """Returns how often a publisher was held."""
    holds = 0
    with one_process_bus("slash", LIMITS_HERE) as bus:
        crowd = Crowd(bus, seed)
        for _ in range(3):
            crowd.begin_to_publish()
            crowd.join(steady=True)
        bus.settle()
        for _ in range(STEPS):
            crowd.act()
            if crowd.random.random() < 0.5:
                bus.settle()
            if crowd.random.random() < 0.05:
                bus.compact()
            holds += sum(len(worker.wait_queue._account_of_stall) for worker in bus.workers)
        crowd.settle()
        crowd.check_received()
        for actor in (*crowd.readers, *crowd.publishers):
            actor.peer.close()
        bus.settle()
        bus.memory.wake((1 << WORKERS) - 1)
        bus.settle()
        check_nothing_is_left(bus)
    return holds


@pytest.mark.parametrize("seed", range(8))
def test_clients_that_block_change_policies_and_leave(seed: int) -> None:
    assert campaign(seed), "nobody was ever held"
