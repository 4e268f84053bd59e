"""A bus is upgraded again and again under load: `python -m tests.broker.upgrades_campaign --help`.

Every other upgrade changes the number of workers, and with --earlier each changes the version. The
clients belong to several users; some choose another order or policy, and some do not read until the
end, so that messages wait in their backlogs. Others come and go all the time. Streams of messages
and of events are open at every third upgrade. What clients must receive is in
`tests.support.checked_load`: nobody loses, doubles or reorders a message, and what is dropped was
announced exactly.
"""

import argparse
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from sbus.client.admin import AdminConnection
from sbus.client.streams import EventStream, MessageStream
from tests.support.admin import administer
from tests.support.bus import PROJECT, Bus
from tests.support.checked_load import CheckedLoad, Kind
from tests.support.previous import is_known, tree_of
from tests.support.quotas import HARDLY_LIMITED
from tests.support.threads import Task, meanwhile
from tests.support.upgrades import ChangingBus, changing_bus, reason_of_end, upgrade
from tests.support.users import directory_for_everybody

UIDS = (os.geteuid(), 61_001, 61_002, 61_003, 61_004) if os.geteuid() == 0 else (os.geteuid(),)
KINDS = (
    *(Kind() for _ in range(9)),
    Kind([b"blocking/soft/block"]),
    *(Kind() for _ in range(8)),
    Kind([b"order/stack"]),
    Kind(keys=39, is_reader=False),
    *(Kind() for _ in range(18)),
    Kind([b"order/stack"], keys=39, is_reader=False),
    Kind([b"order/random"], keys=39, is_reader=False),
    Kind([b"blocking/soft/discard"], keys=39, is_reader=False),
)
"""Their number and that of the users have no common divisor."""
REST_SECONDS = 1.0
"""Of load, between two upgrades."""
_NEWCOMER_SECONDS = 0.02


class UpgradeTimes(NamedTuple):
    """Of one upgrade."""

    workers: int
    pause_ms: float
    """In which nobody was served, as the bus says."""
    longest_message_ms: float
    """For which a message was on its way, with what the clients of this program waited for it."""
    longest_newcomer_ms: float
    """For which somebody waited who connected and requested something."""


class _Newcomers:
    """Clients that connect, wait for a reply and leave, one at a time."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._longest_seconds = 0.0

    def come_and_go(self, stop: threading.Event) -> None:
        while not stop.wait(_NEWCOMER_SECONDS):
            began_at = time.monotonic()
            with self._bus.connect() as client:
                client.whoami()
            self._longest_seconds = max(self._longest_seconds, time.monotonic() - began_at)

    def take_longest_wait(self) -> float:
        longest, self._longest_seconds = self._longest_seconds, 0.0
        return longest


@contextmanager
def _streams_that_end(bus: Bus) -> Iterator[None]:
    """Streams that are read during the block, and told that another process serves."""
    with ExitStack() as stack:
        streams = [
            kind(stack.enter_context(AdminConnection(bus.address)))
            for kind in (EventStream, MessageStream)
        ]
        reasons = stack.enter_context(ThreadPoolExecutor()).map(reason_of_end, streams)
        yield
        for reason in reasons:
            assert "another process serves the bus now" in reason


class _Campaign:
    def __init__(
        self,
        changing: ChangingBus,
        load: CheckedLoad,
        newcomers: _Newcomers,
        rate: int,
        rest_seconds: float,
        trees: Sequence[Path],
    ) -> None:
        self._changing = changing
        self._load = load
        self._newcomers = newcomers
        self._rate = rate
        self._rest_seconds = rest_seconds
        self._trees = cycle(trees)
        next(self._trees)

    def upgrade(self, workers: int, *, is_watched: bool) -> UpgradeTimes:
        """Have the bus upgraded while the load goes on."""
        changing, results = self._changing, []
        changing.set_workers(workers)
        changing.run_tree(next(self._trees))
        with ExitStack() as stack:
            if is_watched:
                stack.enter_context(_streams_that_end(changing.bus))
            self._load.run_for(self._rate, self._rest_seconds)
            self._load.take_longest_wait()
            self._newcomers.take_longest_wait()
            task = Task(lambda: results.append(upgrade(changing.bus)))
            self._load.run(self._rate, lambda: task.ends_within(0))
            self._load.run_for(self._rate, self._rest_seconds)
        return UpgradeTimes(
            workers,
            results[0]["pause_seconds"] * 1_000,
            self._load.take_longest_wait() * 1_000,
            self._newcomers.take_longest_wait() * 1_000,
        )


def _subscriptions(bus: Bus) -> int:
    with administer(bus) as admin:
        users = admin.ask("users")["users"]
    return sum(user["subscriptions"] for user in users)


def run_campaign(
    *,
    clients: int,
    subscriptions: int,
    workers: int,
    upgrades: int,
    messages_per_second: int,
    seed: int = 1,
    earlier: str = "",
    rest_seconds: float = REST_SECONDS,
) -> tuple[list[UpgradeTimes], str]:
    """Run one, check it, and return the times of the upgrades and what happened."""
    trees = [tree_of(earlier), PROJECT] if earlier else [PROJECT]
    options = ("--others", *HARDLY_LIMITED)
    with (
        directory_for_everybody() as directory,
        changing_bus(directory, *options, workers=workers, tree=trees[0]) as changing,
    ):
        each = subscriptions // clients
        load = CheckedLoad(changing.bus, clients, random.Random(seed), KINDS, UIDS, each)
        newcomers = _Newcomers(changing.bus)
        campaign = _Campaign(changing, load, newcomers, messages_per_second, rest_seconds, trees)
        try:
            before = _subscriptions(changing.bus)
            with meanwhile(newcomers.come_and_go):
                times = [
                    campaign.upgrade(workers + (number + 1) // 2 % 2, is_watched=number % 3 == 1)
                    for number in range(upgrades)
                ]
            assert _subscriptions(changing.bus) == before
            load.finish()
            load.check(deaths=0)
        finally:
            load.close()
    return times, f"{before} subscriptions, {load.report()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--subscriptions", type=int, default=20_000, help="of all clients")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--upgrades", type=int, default=10)
    parser.add_argument("--messages-per-second", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--earlier", default="", help="the commit of a version that every other upgrade goes to"
    )
    chosen = parser.parse_args()
    if chosen.earlier and not is_known(chosen.earlier):
        parser.error(f"the history of this checkout has no commit {chosen.earlier}")
    times, report = run_campaign(**vars(chosen))
    sys.stdout.write("workers  pause ms  longest message ms  longest newcomer ms\n")
    for it in times:
        sys.stdout.write(
            f"{it.workers:7}  {it.pause_ms:8.0f}  {it.longest_message_ms:18.0f}  "
            f"{it.longest_newcomer_ms:19.0f}\n"
        )
    sys.stdout.write(report + "\n")


if __name__ == "__main__":
    main()
