"""Clients that are moved between workers while a test uses them."""

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sbus.bench.proc import process_tree
from tests.support.admin import Admin, administer
from tests.support.bus import Bus
from tests.support.client_sockets import check_sockets
from tests.support.threads import meanwhile
from tests.support.upgrades import serving_pid

_PAUSE_SECONDS = 0.001


def move(admin: Admin, client: int, worker: int) -> str:
    """Have a worker serve a client; why that was not possible, "" if it was."""
    request = {"verb": "move", "id": 1, "client": client, "worker": worker}
    reply = admin.exchange(json.dumps(request).encode())
    if "error" in reply:
        assert reply["error"]["code"] == "not-found", reply
        return "it has left"
    why_not = reply["result"]["why_not"]
    assert isinstance(why_not, str)
    return why_not


@contextmanager
def clients_moving(bus: Bus) -> Iterator[Counter[str]]:
    """During the block, again and again, a random client is moved to a random worker. Counts what
    came of that: "" for clients that were moved, otherwise why not."""
    outcomes: Counter[str] = Counter()

    def run(stop: threading.Event) -> None:
        chance = random.Random(1)
        with administer(bus) as admin:
            workers = len(admin.ask("workers")["workers"])
            while not stop.wait(_PAUSE_SECONDS):
                clients = [client["client"] for client in admin.ask("clients")["clients"]]
                if clients:
                    outcomes[move(admin, chance.choice(clients), chance.randrange(workers))] += 1

    with meanwhile(run):
        yield outcomes
    check_sockets(process_tree(serving_pid(bus)))
