"""A simulated bus: everything in one process, in an order that a seed decides.

Each step of a simulation is that of one process: a worker goes on to its next pause or the end of
its tick, or a client sends or reads something, or the front deals with what has happened. Workers
are paused and killed at any opcode, killed at any store of the compiled step, and stopped for a
time wherever they are. The same seed repeats the same steps. In the end nothing fails any more,
everybody reads, and the bus has to come to rest.
"""

import hashlib
import random
import socket
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import trio
import trio.abc

from sbus.broker.config.settings import BusSettings
from sbus.shared.shared_memory import SharedMemory
from sbus.unix.credentials import Credentials
from tests.history.checks import check
from tests.history.history import History
from tests.history.log import PLACED, RECEIVED, Entries
from tests.simulation import clock as clocks
from tests.simulation import names
from tests.simulation.clients import SimulatedClient
from tests.simulation.fibers import Fiber, Interruption
from tests.simulation.front import SimulatedFront
from tests.simulation.plan import SMALL_BUFFER_BYTES, UIDS, Plan, make_plan
from tests.simulation.workers import SimulatedLock, SimulatedWorker

GROUP_OF_NOBODY = (b"!/cred/999/1000//s", b"!/cred/999/1001//s")
"""Workers are sent messages with these keys for patterns without a group, and deliver none."""
KEYS = (
    *(b"a", b"a/b", b"a/b/c", b"b", b"b/x"),
    *(b"!/cred//1000//s", b"!/cred//1001//s"),
    *GROUP_OF_NOBODY,
)
PATTERNS = (b"", b"a", b"a/", b"a/*", b"b/", b"*", b"b/x")
OPEN_CHOICES = (
    b"blocking/soft/queue",
    b"blocking/soft/discard",
    b"blocking/soft/block",
    b"blocking/hard/block",
    b"order/latest",
    b"age/1",
)
QUIET_CLIENTS = 3
"""One of so many publishes nothing itself, takes names, and may leave."""
SETTLE_ROUNDS_MAX = 20_000
STORES_PER_TICK = 250
"""Of the compiled step, at most; rarely more."""
QUIET_ROUNDS = 30
QUIET_ROUND_NS = 10_000_000


class Outcome(NamedTuple):
    """What came of a seed."""

    counts: Counter[str]
    digest: str
    """Of everything that clients received: the same each time."""


class World:
    """One bus and its clients."""

    def __init__(
        self,
        seed: int,
        clock: clocks.SimulatedClock,
        on_enter: Callable[[Fiber], None] | None,
        *,
        is_exact: bool,
    ) -> None:
        """With `on_enter`, nothing fails but what that does: it is called when a worker has entered
        the lock, once all clients of the beginning are served."""
        self.chance = random.Random(seed)
        self.plan = self._make_plan()
        if on_enter is not None:
            self.plan = self.plan._replace(interruptions=0, deaths_max=0)
        self._on_enter = on_enter
        self._clock = clock
        self._is_exact = is_exact
        """Whether all messages that get their place are known: the compiled step tells of none."""
        self._has_names = is_exact or not self.plan.deaths_max
        """With the compiled step, a worker dies in a child process, and what it told of there is
        not known."""
        self._settings = BusSettings(
            workers=self.plan.workers,
            limits=self.plan.limits,
            flood_control=self.plan.flood_control,
        )
        self.memory = SharedMemory(self.plan.workers, self.plan.limits)
        self.lock = self.memory.lock = SimulatedLock(self.memory)
        self.log = Entries()
        limits = self.plan.limits
        self.log.event(f"setting {self.plan.workers} {limits.backlog_messages_max}")
        self.log.event("places-known all" if is_exact else "places-known own")
        self.clients: list[SimulatedClient] = []
        self.deaths = 0
        self._step = 0
        self._is_faulty = False

    def _make_plan(self) -> Plan:
        return make_plan(self.chance)

    # -- the run -------------------------------------------------------------------------------
    async def run(self) -> Outcome:
        async with trio.open_nursery() as nursery:
            self.front = SimulatedFront(nursery, self.memory, self._settings, self.chance, self.log)
            for number in range(self.plan.workers):
                self.front.fork(number)
            self.front.receive_events()
            for _ in range(self.plan.clients):
                self._join()
            await self._settle()
            self._begin_faults()
            for step in range(self.plan.steps):
                self._step = step
                await self._make_step()
            self._is_faulty = False
            await self._come_to_rest()
            self._check()
            nursery.cancel_scope.cancel()
        return self._outcome()

    def _begin_faults(self) -> None:
        self._is_faulty = True
        if self._on_enter is not None:
            self.lock.on_enter = self._on_enter

    async def _make_step(self) -> None:
        self._clock.advance(self.chance.randrange(1_000, 100_000))
        what = self.chance.random()
        if what < 0.6:
            self._schedule(self.chance.choice(self.front.workers).process)
        elif what < 0.97:
            self._let_client_act()
        elif what < 0.98:
            self.front.want_compaction()
        elif what < 0.99:
            self._move()
        elif self.chance.random() < 0.5:
            self._kill()
        else:
            self._join()
        if self.front.is_succeeding() and self.chance.random() < 0.1:
            self._join()
        self.front.receive_events()
        await trio.lowlevel.checkpoint()
        self._check_wakes()

    # -- workers -------------------------------------------------------------------------------
    def _schedule(self, worker: SimulatedWorker | None) -> None:
        """Let a worker go on, unless it is stopped or has nothing to do."""
        if worker is None or worker.fiber.is_dead or self._step < worker.stopped_until:
            return
        if not worker.is_ready():
            return
        self._clock.show_compiled_step()
        due = self._interruption()
        is_compiled = not self._is_exact
        if is_compiled and due is not None and due.kills and worker.may_die_in_child():
            worker.die_in_child(due.opcodes % STORES_PER_TICK)
        else:
            worker.advance(due)
        if worker.fiber.is_dead:
            self._note_death()
        elif worker.fiber.is_busy and not worker.fiber.waits_for_lock:
            worker.stopped_until = self._step + self.chance.choice((0, 3, 10, 40))

    def _interruption(self) -> Interruption | None:
        if not self._is_faulty or self.chance.random() >= self.plan.interruptions:
            return None
        kills = self.deaths < self.plan.deaths_max and self.chance.random() < 0.3
        opcodes = int(2 ** (self.chance.random() * 13))
        return Interruption(self.chance.choice((0, 1, 1, 2, 3)), opcodes, kills)

    def _kill(self) -> None:
        worker = self.chance.choice(self.front.workers).process
        if worker is not None and self.deaths < self.plan.deaths_max:
            worker.kill()
            self._note_death()

    def _note_death(self) -> None:
        self.deaths += 1
        self.log.event("death")
        self.front.check_memory()

    def _check_wakes(self) -> None:
        """While no process is in the middle of something, no wake-up is lost."""
        processes = [worker.process for worker in self.front.workers if worker.process is not None]
        if not self.front.tasks and not any(process.fiber.is_busy for process in processes):
            for process in processes:
                process.check_wakes()

    # -- clients -------------------------------------------------------------------------------
    def _join(self) -> None:
        """A new client, with a subscription or two, that asks for replies."""
        serving = [n for n, worker in enumerate(self.front.workers) if worker.is_serving]
        if not serving or len(self.clients) > 12:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if self.chance.random() < 0.5:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
        own = Credentials(gid=100, uid=self.chance.choice(UIDS), pid=4711)
        ours.setblocking(False)
        number = self.front.admit(self._worker_of_next(serving), ours, own).number
        client = SimulatedClient(number, own, theirs, self.log)
        self.clients.append(client)
        client.control(b"!/notices/on")
        if self.chance.random() < 0.3:
            client.control(b"echo/off")
        if self.chance.random() < 0.5:
            client.control(self.chance.choice(OPEN_CHOICES))
        if self.chance.random() < 0.5:
            client.control(b"sender/on")
        for _ in range(self.chance.randint(1, 2)):
            client.subscribe(self._pattern(client))
        client.request()

    def _worker_of_next(self, serving: list[int]) -> int:
        """Which of these is to serve the next client."""
        return self.chance.choice(serving)

    def _pattern(self, client: SimulatedClient) -> bytes:
        if self.chance.random() < 0.2:
            return b"!/cred//%d//s" % client.own.uid
        if self.chance.random() < 0.3:
            return b"!/presence/*/*"
        return self.chance.choice(PATTERNS)

    def _let_client_act(self) -> None:
        client = self.chance.choice(self.clients)
        if not client.is_there:
            return
        what = self.chance.random()
        if what < 0.45 and self._has_names and client.number % QUIET_CLIENTS == 0:
            self._let_client_be_known(client)
        elif what < 0.45:
            self._let_client_publish(client)
        elif what < 0.85:
            client.read(self.chance.choice((1, 5, 100)))
        elif what < 0.9:
            for _ in range(self.chance.choice((1, 1, 1, 10))):
                client.subscribe(self._pattern(client))
        elif what < 0.94:
            if client.patterns:
                client.unsubscribe(self.chance.choice(range(len(client.patterns))))
        elif what < 0.99:
            client.request()
        elif not client.published:
            client.leave()

    def _let_client_publish(self, client: SimulatedClient) -> None:
        for _ in range(self.chance.choice((1, 1, 3, 10))):
            size = self._size(client)
            publish = client.ask if self.chance.random() < 0.2 else client.publish
            publish(self._key(client), size)

    def _size(self, _client: SimulatedClient) -> int:
        return self.chance.choice((0, 0, 100, 500))

    def _key(self, _client: SimulatedClient) -> bytes:
        return self.chance.choice(KEYS)

    def _let_client_be_known(self, client: SimulatedClient) -> None:
        """Have a client that publishes nothing take a name or give it up, ask who is there, or
        leave. So nothing that it has sent can be missing when it has left."""
        what, untried = self.chance.random(), names.untried(client)
        if what < 0.6 and untried:
            name, key = self.chance.choice(untried), self.chance.choice(names.WILL_KEYS)
            will = names.will_of(client, name, key) if self.chance.random() < 0.5 else b""
            client.join(name, will, names.announcements(client, name, will))
        elif what < 0.8:
            client.control(b"!/leave")
        elif what < 0.9:
            client.control(b"!/members\0*/*")
        else:
            client.leave()

    def _move(self) -> None:
        client = self.front.registry.get(self.chance.choice(self.clients).number)
        to = self.chance.randrange(self.plan.workers)
        if client is not None and client.worker != to:
            self.front.move(client, to)

    # -- the end -------------------------------------------------------------------------------
    async def _come_to_rest(self) -> None:
        """Nothing fails any more: everything is done, and every client gets a reply."""
        for worker in self.front.workers:
            if worker.process is not None:
                worker.process.fiber.let_be()
                worker.process.stopped_until = 0
        await self._settle()
        self.log.event("calm")
        for client in self.clients:
            if client.is_there:
                client.control(b"!/members\0*/*")
        await self._settle()
        replies = {client: client.replies for client in self.clients}
        for client in self.clients:
            if client.is_there:
                client.request()
        await self._settle()
        for client, before in replies.items():
            is_answered = client.replies > before
            assert not client.is_there or is_answered, f"client {client.number} gets no reply"

    async def _settle(self) -> None:
        """Let everybody go on and read until nothing happens for a while."""
        quiet = rounds = 0
        while quiet < QUIET_ROUNDS:
            rounds += 1
            assert rounds < SETTLE_ROUNDS_MAX, "the bus never comes to rest"
            is_active = bool(self.front.tasks)
            for worker in self.front.workers:
                process = worker.process
                if process is not None and process.is_ready():
                    self._schedule(process)
                is_active |= process is None or process.fiber.is_busy or process.has_more
            is_active |= sum(client.read() for client in self.clients) > 0
            self.front.receive_events()
            await trio.lowlevel.checkpoint()
            quiet = 0 if is_active else quiet + 1
            self._clock.advance(50_000 if is_active else QUIET_ROUND_NS)

    def _check(self) -> None:
        self.front.check_memory()
        with self.lock as words:
            used = self.front.log.statistics(words).used_bytes
        assert not used, f"{used} bytes of the log are left"
        for client in self.clients:
            why = self.front.gone.get(client.number)
            assert not client.has_ended or why == "worker-died", f"{client.number} ended: {why}"
        for packet in self.lock.placed if self._is_exact else self.lock.announced:
            self.log.write(0, PLACED, packet)
        self.log.event("end")
        self.history = History(self.log)
        violations = check(self.history)
        assert not violations, "\n".join(map(str, violations))
        losses = [count for one in self.history.connections.values() for _, count in one.losses]
        assert None not in losses or self.front.kept_nothing, "a number was known"

    def _outcome(self) -> Outcome:
        connections = self.history.connections.values()
        digest = hashlib.sha256()
        for entry in self.log:
            if entry.direction == RECEIVED:
                digest.update(entry.packet)
        digest.update(b"%d" % self._clock.now_ns)
        counts = Counter(
            sent=sum(len(one.messages) for one in connections),
            received=sum(len(one.inbox) for one in connections),
            lost=sum(count or 0 for one in connections for _, count in one.losses),
            deaths=self.deaths,
            announced=len(self.lock.announced),
            moves=self.front.moved,
        )
        return Outcome(counts, digest.hexdigest()[:16])

    def close(self) -> None:
        for worker in self.front.workers:
            if worker.process is not None:
                worker.process.kill()
            if worker.link is not None:
                worker.link._sock.close()
        for client in self.front.registry:
            client.sock.close()
        for end in self.clients:
            end.leave()
        self.memory.close()
