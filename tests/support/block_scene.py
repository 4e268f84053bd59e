"""A slow client that blocks, its publishers and other publishers, on chosen workers.

All belong to one user. Many scenes use a bus, one after the other: each waits until the clients of
the last one have left, so that new clients are placed as on a new bus (see `test_placement`). The
user's held time is never used up.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, islice
from pathlib import Path

from tests.support.admin import Admin, administer
from tests.support.bus import Bus, running_bus
from tests.support.flood import limit_options, message, send_until_held
from tests.support.processes import descriptors_at_rest, wait_for_descriptors
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until

SOFT = (b"blocking/soft/block",)
SIZE = 100
BACKLOG_MESSAGES = 20
OPTIONS = limit_options(backlog_messages_max=BACKLOG_MESSAGES, user_held_seconds_max=60)
_CLIENTS_EACH = 4


def numbered(begin: int = 0) -> Iterator[bytes]:
    """Messages without end."""
    return (message(b"%d" % number, SIZE) for number in count(begin))


def receive_all(client: RawClient, sent: int) -> None:
    """The first `sent` numbered messages arrive, once each and in their order, before any other."""
    for packet in islice(numbered(), sent):
        assert client.receive() == packet


class Scene:
    """Clients by worker, [worker][number], and who plays which part."""

    def __init__(self, bus: Bus, clients: list[list[RawClient]], publishers_worker: int) -> None:
        self.bus = bus
        self.slow = clients[0][0]
        self.publisher = clients[publishers_worker][1]
        self.other_publisher = clients[0][2]
        self.witnesses = [own[3] for own in clients]

    def subscribe(self, client: RawClient, *choices: bytes) -> None:
        """Become a subscriber with these choices, and one who is told of losses."""
        for choice in (b"!/notices/on", *choices):
            client.control(choice)
        client.sub(b"k")
        client.whoami()

    def hold(self, publisher: RawClient | None = None) -> int:
        """Publish until the bus holds the publisher for the slow client; returns how many. Waiting
        for room in the log looks the same from outside, so the bus is asked."""
        with administer(self.bus) as admin:
            sent, held = 0, _held(admin)

            def is_held() -> bool:
                nonlocal sent
                packets = numbered(sent)
                sent += send_until_held(publisher or self.publisher, packets, self.witnesses)
                return _held(admin) > held

            wait_until(is_held, "the publisher is held")
        return sent


def _held(admin: Admin) -> int:
    """How many publishers are held for clients; a worker that is slow to answer is asked again."""
    while (result := admin.ask("clients"))["unanswered"]:
        pass
    return sum(client["activity"]["waits_for"] == "stall" for client in result["clients"])


class Scenes:
    """One bus for each number of workers, started when first needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._running: dict[int, tuple[Bus, dict[int, int]]] = {}

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def scene(self, workers: int, publishers_worker: int) -> Iterator[Scene]:
        """Newcomers, on a bus that all who came before have left."""
        if workers not in self._running:
            directory = self._directory / str(workers)
            directory.mkdir()
            bus = self._stack.enter_context(running_bus(directory, *OPTIONS, workers=workers))
            self._running[workers] = bus, descriptors_at_rest(bus)
        bus, at_rest = self._running[workers]
        wait_for_descriptors(bus, at_rest)
        with scene_on(bus, workers, publishers_worker) as made:
            yield made


@contextmanager
def scene_on(bus: Bus, workers: int, publishers_worker: int) -> Iterator[Scene]:
    """Newcomers, on a bus that has nobody else."""
    with ExitStack() as stack:
        clients = [stack.enter_context(bus.connect()) for _ in range(_CLIENTS_EACH * workers)]
        for client in clients:
            client.whoami()
        places = [clients[worker::workers] for worker in range(workers)]
        yield Scene(bus, places, publishers_worker)
