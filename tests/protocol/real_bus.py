"""An sbusd of this tree that plays sections, seen through the kernel and its admin socket.

Witnesses, one client on each worker, are the barrier: the kernel says when a worker has read what a
client sent, and after three rounds of replies to all witnesses that has taken effect on all
workers. In the first one every client that was ready has had a turn, in the second one the other
workers have walked the log up to there, and in the third one a worker has learnt which sockets are
full.
"""

import select
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbus.bench.proc import process_tree
from tests.protocol.accounts import check_ledger, difference, different_fields
from tests.protocol.configurations import Configuration
from tests.protocol.plain_link import PATIENCE_SECONDS, PlainLink, connect
from tests.protocol.player import DOT_BARRIER, WHOAMI, Bus, Link, Tally
from tests.support.admin import Admin, administer
from tests.support.bus import running_bus
from tests.support.client_sockets import check_sockets
from tests.support.descriptor_store import StoringManager
from tests.support.flood import filling
from tests.support.processes import open_descriptors
from tests.support.threads import wait_until
from tests.support.upgrades import ending

_ROUNDS = 3
_BASE = {"user_connections_per_second_max": "1000000"}
"""A section connects faster than users do."""
_OPTIONS = ("dialect", "soft", "hard", "order")


class NumberedLink(PlainLink):
    """A connection whose number the bus has told."""

    number = 0

    def number_is(self, number: int) -> None:
        self.number = number
        own = self.identity
        self.identity = type(own)(own.gid, own.uid, own.pid, number)


def command_line(options: Mapping[str, str]) -> list[str]:
    """The words of `sbusd` for what a `bus:` line says; what is no option is a limit."""
    words = []
    for name, value in (_BASE | dict(options)).items():
        words += [f"--{name}", value] if name in _OPTIONS else ["--limit", f"{name}={value}"]
    return words


class RealBus(Bus):
    """Sections use it one after the other, but for those that change it for good: `is_used_up`."""

    def __init__(
        self, directory: Path, options: Mapping[str, str], configuration: Configuration
    ) -> None:
        self.is_dot = options.get("dialect") == "dot"
        self.is_used_up = False
        self.counts_anew = False
        """Workers that have died took the figures of their clients with them."""
        self.place = configuration.place
        """Of the clients of the next section."""
        self.step = configuration.step
        self.workers = configuration.workers
        self.words = command_line(options)
        self.directory = directory
        self.manager: StoringManager | None = None
        """What starts it again when all of its processes have ended."""
        if configuration.event in ("restart", "resume"):
            self.manager = StoringManager(directory)
        self.links: list[NumberedLink] = []
        """Of the section's clients."""
        self.stopped: list[int] = []
        """Workers that do nothing."""
        self.stack = ExitStack()
        self._refused: Counter[str] = Counter()
        self.start()
        self._descriptors = self._count_descriptors()

    def start(self) -> None:
        """Start it, and again with what has been stored."""
        with self.environment(), ExitStack() as stack:
            if self.manager is not None:
                running = self.manager.bus(*self.words, workers=self.workers)
                self.running = stack.enter_context(running)
            else:
                running = running_bus(self.directory, *self.words, workers=self.workers)
                self.running = stack.enter_context(running)
                stack.enter_context(ending(self.running))
            self.main_pid = self.running.process.pid
            self.begin()
            self._refused = Counter(self.asks.ask("stats")["traffic"]["refused"])
            self.stack = stack.pop_all()

    @contextmanager
    def environment(self) -> Iterator[None]:
        """That of a start, during the block."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SBUS_STEP", self.step)
            yield

    def begin(self) -> None:
        """Connect to the bus as it is now: after its start, and after another program took over."""
        self._witnesses: list[NumberedLink] = []
        self.asks: Admin = administer(self.running)
        self.asks.sock.settimeout(PATIENCE_SECONDS)
        self._newest = max((it["client"] for it in self.clients()), default=0)
        self._witnesses += (self._admitted(number) for number in range(self.workers))
        if self.is_dot:
            for witness in self._witnesses:
                witness.send(b"SUB %b%d" % (DOT_BARRIER, witness.number))
        self.barrier([])
        self.pids = process_tree(self.main_pid)

    def disconnect(self) -> None:
        """Close the connections of `begin`."""
        self.asks.sock.close()
        for witness in self._witnesses:
            witness.close()

    def close(self) -> None:
        self.disconnect()
        self.stack.close()
        if self.manager is not None:
            self.manager.close()

    def clients(self, after: int | None = None) -> list[dict[str, Any]]:
        more = {} if after is None else {"after": after}
        listed: list[dict[str, Any]] = self.asks.ask("clients", **more)["clients"]
        return listed

    def report(self, link: Link) -> dict[str, Any]:
        """What the bus says of a client."""
        assert isinstance(link, NumberedLink)
        (found,) = (one for one in self.clients(link.number - 1) if one["client"] == link.number)
        return found

    # -- clients -------------------------------------------------------------------------------
    def connect(self, number: int) -> Link:
        self._wait_for_departures()
        link = self._admitted(number % self.workers if self.place == "other" else 0)
        self.links.append(link)
        return link

    def _wait_for_departures(self) -> None:
        """The front has forgotten the clients that have closed their connections."""
        closed = {link.number for link in self.links if link.sock.fileno() < 0}
        wait_until(
            lambda: not closed or not closed & {it["client"] for it in self.clients()},
            "clients that have left are forgotten",
            PATIENCE_SECONDS,
        )

    def is_stored(self, links: Sequence[NumberedLink]) -> bool:
        """Whether the service manager has these connections, and the memory of the bus."""
        assert self.manager is not None
        self.manager.next(0.01)
        names = self.manager.stored.keys()
        return {f"@{link.number}" for link in links} <= names and any("@m" in it for it in names)

    def _admitted(self, worker: int) -> NumberedLink:
        """A new client, moved to this worker; one that is not admitted can be read."""
        link = NumberedLink(connect(self.running.address))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (listed := self.clients(self._newest)):
            if select.select([link.sock], [], [], 0)[0]:
                return link
            assert time.monotonic() < deadline, "a client is neither admitted nor refused"
        (own,) = listed
        self._newest = own["client"]
        link.number_is(own["client"])
        if own["worker"] != worker:
            self.move(link, worker)
        return link

    def move(self, link: Link, worker: int) -> None:
        assert isinstance(link, NumberedLink)
        wait_until(
            lambda: self.asks.ask("move", client=link.number, worker=worker)["why_not"] == "",
            f"client {link.number} has worker {worker}",
            PATIENCE_SECONDS,
        )

    # -- barriers ------------------------------------------------------------------------------
    def barrier(self, senders: Sequence[Link]) -> None:
        for link in senders:
            assert isinstance(link, PlainLink)
            link.wait_until_read()
        for _ in range(_ROUNDS):
            for witness in self._witnesses:
                own = b"MSG %b%d\0" % (DOT_BARRIER, witness.number)
                witness.send(own if self.is_dot else WHOAMI)
            for witness in self._witnesses:
                assert witness.receive(), "a worker does not answer"

    def unread_at_rest(self, link: Link) -> int:
        assert isinstance(link, PlainLink)
        self.barrier([])
        unread = link.unread_bytes()
        self.barrier([])
        self.barrier([])
        assert link.unread_bytes() == unread, "the bus reads on"
        return unread

    def fill(self, link: Link, key: bytes) -> int:
        (publisher, *_) = self._witnesses
        packets = filling(key)
        for packet in packets:
            publisher.send(packet)
        self.barrier([publisher])
        assert self.report(link)["activity"]["backlog"] == 0, "more than its socket takes"
        return len(packets)

    # -- what is seen from inside --------------------------------------------------------------
    def admin(self, verb: str, link: Link | None, text: str) -> None:
        number = link.number if isinstance(link, NumberedLink) else 0
        if verb == "kick":
            self.asks.ask("kick", client=number, text=text)
            self.barrier([])
        elif verb == "clients":
            assert link is not None
            _await_fields(lambda: self.report(link), text)
        elif verb == "users":
            _await_fields(lambda: self.asks.ask("users")["users"][0], text)
        else:
            raise AssertionError(f"no request of transcripts: {verb}")

    def check(self, refused: Mapping[str, int], tallies: Mapping[int, tuple[Link, Tally]]) -> None:
        self._check_refusals(Counter(refused))
        for link, tally in tallies.values():
            check_ledger(self.report(link)["activity"], tally, self.is_dot, self.counts_anew)
        check_sockets(self.pids)

    def _check_refusals(self, expected: Counter[str]) -> None:
        traffic: dict[str, Any] = {}

        def is_as_expected() -> bool:
            traffic.update(self.asks.ask("stats")["traffic"])
            return not difference(traffic, self._refused, expected)

        try:
            wait_until(is_as_expected, "it is as expected", PATIENCE_SECONDS)
        except AssertionError:
            raise AssertionError(difference(traffic, self._refused, expected)) from None
        finally:
            self._refused = Counter(traffic.get("refused"))

    def finish(self) -> None:
        """Behind the end of its clients' connections: nothing of them is left."""
        self.links.clear()
        if not self.is_used_up:
            wait_until(self._is_as_at_first, "as many descriptors as before", PATIENCE_SECONDS)

    def _is_as_at_first(self) -> bool:
        return all(
            count <= self._descriptors[pid] for pid, count in self._count_descriptors().items()
        )

    def _count_descriptors(self) -> dict[int, int]:
        return {pid: open_descriptors(pid) for pid in self.pids}

    # -- events --------------------------------------------------------------------------------
    def event(self, name: str, link: Link | None) -> None:
        from tests.protocol import events

        events.happen(self, name, link)


def _await_fields(look: Callable[[], Mapping[str, Any]], text: str) -> None:
    """The record has these fields, or has them soon."""
    try:
        wait_until(lambda: not different_fields(look(), text), "as expected", PATIENCE_SECONDS)
    except AssertionError:
        raise AssertionError(different_fields(look(), text)) from None
