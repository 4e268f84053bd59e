"""Charges: each user pays for the work that its own clients cause, in units, and for nothing else.

Two workers on real sockets are given ticks. The clock stands still unless a test moves it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from sbus.broker.delivery.outbox import Outbox
from sbus.broker.worker import sessions as sessions_module
from sbus.broker.worker.fair_queue import BacklogSender, FairQueue
from sbus.broker.worker.session import Session
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.broker.worker.wait_queue import FOR_ROOM
from sbus.limits import BYTES_PER_UNIT, Limits
from sbus.routing.route_cache import RouteCache
from sbus.unix.credentials import Credentials
from tests.fuzz.one_process_bus import OneProcessBus, one_process_bus

LIMITS = Limits(log_bytes=8 * 1024 * 1024, table_bytes=1024 * 1024, packet_bytes_max=64 * 1024)
HOSTILE = Credentials(gid=1, uid=2000, pid=1)
INTERRUPTION_SECONDS = 0.1
UNITS_PER_TICK = 64

Pass = Callable[[float], None]
Charges = dict[int, list[int]]
Client = Session | BacklogSender


@pytest.fixture
def bus(advance: Pass) -> Iterator[OneProcessBus]:
    with one_process_bus("slash", LIMITS) as opened:
        yield opened


@pytest.fixture
def charges(bus: OneProcessBus, monkeypatch: pytest.MonkeyPatch) -> Charges:
    """By the users' accounts."""
    made: Charges = defaultdict(list)
    charge = FairQueue.charge

    def record(queue: FairQueue[Client], account_place: int, cost: int) -> None:
        made[account_place].append(cost)
        charge(queue, account_place, cost)

    monkeypatch.setattr(FairQueue, "charge", record)
    return made


def delay(
    monkeypatch: pytest.MonkeyPatch, of: object, name: str, pass_time: Pass, seconds: float
) -> list[str]:
    """Let each call of this method take longer; returns the calls."""
    method, calls = getattr(of, name), []

    def delayed(*arguments: object, **options: object) -> object:
        calls.append(name)
        pass_time(seconds)
        return method(*arguments, **options)

    monkeypatch.setattr(of, name, delayed)
    return calls


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (Subscriptions, "subscribe"),
        (RouteCache, "look_up"),
        (Outbox, "send_backlog"),
    ],
    ids=["a subscription", "new keys", "a backlog"],
)
def test_nobody_pays_for_an_interruption_by_the_host(
    bus: OneProcessBus,
    charges: Charges,
    interrupt: Pass,
    monkeypatch: pytest.MonkeyPatch,
    of: type,
    name: str,
) -> None:
    reader, writer, other = bus.connect(0, buffer_bytes=4608), bus.connect(0), bus.connect(1)
    bus.settle()
    calls = delay(monkeypatch, of, name, interrupt, INTERRUPTION_SECONDS)
    reader.send(b"SUB ")
    bus.settle()
    for number in range(40):
        writer.send(b"MSG here/%d\0" % number + bytes(30_000))
        other.send(b"MSG there/%d\0" % number + bytes(30_000))
        bus.settle()
    while reader.read():
        bus.settle()
    assert calls
    assert max(cost for costs in charges.values() for cost in costs) <= 100


def test_expelling_is_charged_and_ends_the_tick(
    bus: OneProcessBus, charges: Charges, advance: Pass, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these clients has sent much that is discarded."""
    peers = [bus.connect(0, HOSTILE) for _ in range(20)]
    bus.settle()
    place = bus.account_of(HOSTILE.uid).place
    discarded = delay(monkeypatch, sessions_module, "discard_unread", advance, 0.001)
    for peer in peers:
        peer.send(b"BAD")
    before = len(discarded)
    ticks = 0
    while len(discarded) < len(peers):
        bus.stepped[0].tick()
        ticks += 1
        assert len(discarded) - before <= 1, "it takes as long as many ticks"
        before = len(discarded)
        assert ticks < 3 * len(peers)
    assert sum(charges[place]) >= len(peers) * 250


def test_charges_outlast_an_empty_queue_while_a_client_waits_for_room(
    bus: OneProcessBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = bus.connect(0)
    bus.settle()
    forgotten = delay(monkeypatch, FairQueue, "forget_charges", lambda seconds: None, 0)
    parts = bus.workers[0]
    scheduler = parts.machine._scheduler
    parts.wait_queue.add(parts.sessions[writer.number], FOR_ROOM)
    scheduler.give_turns(UNITS_PER_TICK)
    assert not forgotten
    scheduler.retry_woken()
    scheduler.give_turns(UNITS_PER_TICK)
    assert forgotten


@pytest.mark.parametrize("step", ["compiled", "python"])
def test_a_walk_is_charged_for_bytes(bus: OneProcessBus, step: str) -> None:
    """As many units as the same deliveries cost in a turn."""
    reader, writer = bus.connect(0), bus.connect(1)
    reader.send(b"SUB ")
    bus.settle()
    sequencer = bus.workers[0].sequencer
    costs = []
    for size in (10, 10 * BYTES_PER_UNIT):
        for _ in range(2):
            sequencer.take_walking_cost()
            writer.send(b"MSG k\0" + bytes(size))
            bus.stepped[1].tick()
            if step == "python":
                sequencer._walker.monitor.start_sampling()  # then nothing is ordinary
            sequencer.walk_on(1_000)
            costs.append(sum(sequencer.take_walking_cost().values()))
    assert costs[1] == 2
    assert costs[3] == 2 + 10
    assert [len(packet) for packet in reader.read()] == [16, 16, 40_966, 40_966]
