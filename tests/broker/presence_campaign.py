"""Many clients come and go while workers die, clients move and the bus is upgraded:
`python -m tests.broker.presence_campaign --seconds 60`.

Watchers of different workers must receive the same sequence: joins, leaves, wills and ordinary
messages. Only workers without watchers are killed, as a death may cost a watcher a message.
"""

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from sbus.protocol.packets import Message, parse_server_packet
from sbus.protocol.presence import parse_change
from tests.support.admin import administer
from tests.support.bus import Bus
from tests.support.moves import move
from tests.support.presence import PRESENCE, members, members_behind
from tests.support.processes import clients_on_each
from tests.support.raw_client import RawClient
from tests.support.threads import meanwhile
from tests.support.upgrades import changing_bus, upgrade

WORKERS = 8
WATCHERS = 4
ACTORS = 4
UPGRADES_REFUSED_MAX = 5
_PAUSE_SECONDS = 0.02
_ACTOR_PAUSE_SECONDS = 0.005
_END = b"MSG end\0"
_WILL = b"MSG will/"


class Actor:
    """Has so many of the clients, which share their names with those of other actors."""

    def __init__(self, bus: Bus, seed: int, clients: int, names: int) -> None:
        self._bus = bus
        self._chance = random.Random(seed)
        self._names = names
        self._clients: list[RawClient | None] = [None] * clients
        self._is_named = [False] * clients
        self.counts: Counter[str] = Counter()

    def act(self, stop: threading.Event) -> None:
        while not stop.wait(_ACTOR_PAUSE_SECONDS):
            self._act(self._chance.randrange(len(self._clients)))
        for client in self._clients:
            if client is not None:
                client.close()

    def _act(self, index: int) -> None:
        client = self._clients[index]
        if client is None:
            self._clients[index] = self._bus.connect()
            self._is_named[index] = False
            return
        what = self._chance.random()
        if what < 0.5 and not self._is_named[index]:
            name = b"n%d" % self._chance.randrange(self._names)
            will = b"\0will/%b\0%d" % (name, index) if what < 0.25 else b""
            self._is_named[index] = self._ask(client, b"CMSG !/join\0" + name + will) == 2
            self.counts["joins"] += self._is_named[index]
        elif what < 0.8:
            client.pub(b"m/%d" % index, b"%d" % self._chance.randrange(1 << 30))
        elif what < 0.9:
            self._is_named[index] = False
            self._ask(client, b"CMSG !/leave")
        else:
            client.close()
            self._clients[index] = None
            self.counts["ends"] += 1

    def _ask(self, client: RawClient, packet: bytes) -> int:
        """How many parts the reply has; 0 if that was lost with a worker."""
        client.send(packet)
        with suppress(TimeoutError):
            return client.receive(timeout_s=3.0).count(b"\0") + 1
        self.counts["replies lost"] += 1
        return 0


def _trouble(bus: Bus, chance: random.Random, counts: Counter[str], stop: threading.Event) -> None:
    """Kill workers without watchers and move clients that are no watchers."""
    with administer(bus) as admin:
        while not stop.wait(_PAUSE_SECONDS):
            clients = [one["client"] for one in admin.ask("clients")["clients"]]
            others = [client for client in clients if client > WORKERS]
            if others:
                counts["moves"] += not move(admin, chance.choice(others), chance.randrange(WORKERS))
            if chance.random() < 0.05:
                worker = admin.ask("workers")["workers"][chance.randrange(WATCHERS, WORKERS)]
                if worker["pid"]:
                    with suppress(ProcessLookupError):
                        os.kill(worker["pid"], signal.SIGKILL)
                        counts["deaths"] += 1


def _upgrade(bus: Bus, counts: Counter[str]) -> None:
    """A worker that has just died, or a busy host, may be in the way."""
    while True:
        try:
            upgrade(bus)
        except AssertionError:
            counts["upgrades refused"] += 1
            if counts["upgrades refused"] > UPGRADES_REFUSED_MAX:
                raise
        else:
            counts["upgrades"] += 1
            return


def _watch(client: RawClient, received: list[bytes]) -> None:
    while (packet := client.receive(timeout_s=60.0)) != _END:
        received.append(packet)


def run_campaign(directory: Path, seconds: float, clients: int, seed: int) -> Counter[str]:
    """Returns what happened how often. Raises AssertionError where a promise is broken."""
    chance, counts = random.Random(seed), Counter[str]()
    with ExitStack() as stack:
        bus = stack.enter_context(changing_bus(directory, workers=WORKERS)).bus
        placed = stack.enter_context(clients_on_each(bus, WORKERS))
        watchers = [placed[worker][0] for worker in range(WATCHERS)]
        last = placed[WATCHERS][0]
        for watcher in watchers:
            for pattern in (b"!/presence/*/*", b"will/*", b"m/*", b"end"):
                watcher.sub(pattern)
            watcher.control(b"!/notices/on")
            watcher.whoami()
        sequences: list[list[bytes]] = [[] for _ in watchers]
        actors = [Actor(bus, seed + n, clients // ACTORS, clients // 2) for n in range(ACTORS)]

        def watch(index: int, _: threading.Event) -> None:
            _watch(watchers[index], sequences[index])

        with meanwhile(*(partial(watch, index) for index in range(WATCHERS))):
            with meanwhile(*(actor.act for actor in actors)):
                for _ in range(2):
                    with meanwhile(partial(_trouble, bus, chance, counts)):
                        time.sleep(seconds / 2)
                    _upgrade(bus, counts)
            while members(last, b"*/*"):
                time.sleep(_PAUSE_SECONDS)
            last.send(_END)
        _check(sequences)
        for actor in actors:
            counts += actor.counts
        counts["messages"] = len(sequences[0])
        counts["presence"] = sum(it.startswith(PRESENCE) for it in sequences[0])
    return counts


def _check(sequences: list[list[bytes]]) -> None:
    for sequence in sequences[1:]:
        for number, (one, other) in enumerate(zip(sequences[0], sequence, strict=False)):
            assert one == other, f"packet {number}: {one!r} and {other!r}"
        assert len(sequence) == len(sequences[0])
    assert not members_behind(sequences[0])
    _check_names(sequences[0])
    _check_wills(sequences[0])


def _check_names(sequence: list[bytes]) -> None:
    """No two members have one name at one time."""
    there: set[tuple[int, bytes]] = set()
    for packet in sequence:
        if not packet.startswith(PRESENCE):
            continue
        message = parse_server_packet(packet)
        assert isinstance(message, Message)
        change = parse_change(message)
        key = change.member.uid, change.member.name
        if change.reason is None:
            assert key not in there
            there.add(key)
        else:
            there.remove(key)


def _check_wills(sequence: list[bytes]) -> None:
    """A will comes right before the leave of its client, which has not given its name up."""
    for will, leave in zip(sequence, [*sequence[1:], b""], strict=True):
        if will.startswith(_WILL):
            name = will.removeprefix(_WILL).partition(b"\0")[0]
            assert b"/%b\0leave " % name in leave, f"{leave!r} comes behind {will!r}"
            assert leave.endswith(b" left")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.broker.presence_campaign")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        counts = run_campaign(Path(directory), given.seconds, given.clients, given.seed)
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
