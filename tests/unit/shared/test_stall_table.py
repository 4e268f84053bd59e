"""The stall table against a dictionary: stalls, waiters, and deaths at any instant."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbus.limits import Limits
from sbus.shared.stall_table import StallTable, stall_table_words

WORKERS = 3
PLACES = 2
LIMITS = Limits(blocking_clients_max=PLACES)
PICKS = st.integers(0, 100)


class Client:
    """A client that blocks, with its place."""

    def __init__(self, worker: int, number: int, place: int) -> None:
        self.worker = worker
        self.number = number
        self.place = place
        self.stalled = False


class Stalling(RuleBasedStateMachine):
    """Workers that stall, clear, wait and die, and a process without clients that reaps them."""

    @initialize()
    def begin(self) -> None:
        self.words = memoryview(bytearray(8 * stall_table_words(WORKERS, LIMITS))).cast("Q")
        self.views = [StallTable(self.words, PLACES, worker) for worker in range(WORKERS)]
        self.front = StallTable(self.words, PLACES, None)
        self.clients: list[Client] = []
        self.gone: list[Client] = []
        self.waiters: dict[int, int] = {}
        """Masks of workers, by place."""
        self.dead: set[int] = set()
        """Not reaped yet."""
        self.numbers = 0

    def pick(self, number: int, *, stalled: bool) -> Client | None:
        """A client of a living worker that stalls, or does not."""
        fit = [it for it in self.clients if it.stalled == stalled and it.worker not in self.dead]
        return fit[number % len(fit)] if fit else None

    @rule(worker=st.integers(0, WORKERS - 1))
    def choose_to_block(self, worker: int) -> None:
        if worker in self.dead:
            return
        place = self.views[worker].take_place()
        taken = {it.place for it in self.clients}
        if sum(it.worker == worker for it in self.clients) == PLACES:
            assert place is None
            return
        assert place is not None
        assert place not in taken
        self.numbers += 1
        self.clients.append(Client(worker, self.numbers, place))

    @rule(pick=PICKS)
    def stall(self, pick: int) -> None:
        client = self.pick(pick, stalled=False)
        if client is not None:
            self.views[client.worker].stall(client.place, client.number)
            client.stalled = True

    @rule(pick=PICKS)
    def clear(self, pick: int) -> None:
        client = self.pick(pick, stalled=True)
        if client is not None:
            assert self.views[client.worker].clear(client.place) == self.forget_waiters(client)
            client.stalled = False

    def forget_waiters(self, client: Client) -> int:
        return self.waiters.pop(client.place, 0)

    @rule(pick=PICKS, worker=st.integers(0, WORKERS - 1))
    def wait(self, pick: int, worker: int) -> None:
        client = self.pick(pick, stalled=True)
        if client is not None and worker not in self.dead:
            self.views[worker].wait(client.place)
            self.waiters[client.place] = self.waiters.get(client.place, 0) | 1 << worker

    @rule(pick=PICKS)
    def leave(self, pick: int) -> None:
        client = self.pick(pick, stalled=False)
        if client is not None:
            self.views[client.worker].give_back(client.place)
            self.clients.remove(client)
            self.gone.append(client)

    @rule(pick=PICKS, stalled=st.booleans(), counted=st.booleans())
    def die_in_the_midst_of_a_change(self, pick: int, stalled: bool, counted: bool) -> None:
        """A worker dies when it has stored the first word of a change, or all but the waiters."""
        client = self.pick(pick, stalled=stalled)
        if client is None:
            return
        self.words[client.place] = 0 if stalled else client.number
        if counted:
            self.words[0] += -1 if stalled else 1
        self.dead.add(client.worker)

    @rule(worker=st.integers(0, WORKERS - 1))
    def die(self, worker: int) -> None:
        self.dead.add(worker)

    @rule()
    def reap(self) -> None:
        """Nobody waits for clients of a dead worker; its places are free again."""
        for worker in self.dead:
            ended = [it for it in self.clients if it.worker == worker]
            for client in ended:
                self.forget_waiters(client)
            self.front.reap(worker)
            assert not any(self.front.release(client.place) for client in ended)
            self.views[worker] = StallTable(self.words, PLACES, worker)
            self.clients = [it for it in self.clients if it.worker != worker]
            self.gone += ended
        self.dead.clear()

    @invariant()
    def everybody_sees_who_stalls(self) -> None:
        living = [it for it in self.clients if it.worker not in self.dead]
        for view in (*self.views, self.front):
            for client in living:
                assert view.is_stalled(client.place, client.number) == client.stalled
            for client in self.gone[-5:]:
                assert not view.is_stalled(client.place, client.number)
            if not self.dead:
                assert view.any_stalled() == any(it.stalled for it in living)
                assert self.words[0] == sum(it.stalled for it in living)


TestStalling = Stalling.TestCase
TestStalling.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=40)
