"""The load of `sbusctl bench`: publishers in this process, subscribers in another.

A second process receives while this one publishes. It reports through a pipe how far the
subscribers are, so that the publisher can keep within a window. Both use the client library for
Python, whose cost is part of the measurement.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import Self, TypeAlias

from sbus.client.blocking import Connection
from sbus.client.message_queue import Lost
from sbus.errors import BusError, SbusError
from sbus.protocol.packets import Message

WAIT_SECONDS_MAX = 10.0
"""For one message, reply or report; then the benchmark fails."""
IDLE_SECONDS = 0.02
WINDOW_MESSAGES = 1_024
WINDOW_BYTES = 4 * 1024 * 1024
"""How far the publisher may run ahead of subscribers: a fraction of what a backlog holds."""
REPORTS_PER_WINDOW = 8

Client: TypeAlias = Connection[Message | Lost]
Connect: TypeAlias = Callable[[], Client]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """How long a work publishes, what, and how fast at most."""

    seconds: float
    size_bytes: int
    rate: float | None
    messages_max: int | None

    @property
    def window(self) -> int:
        """In messages."""
        return max(1, min(WINDOW_MESSAGES, WINDOW_BYTES // max(1, self.size_bytes)))

    @property
    def step(self) -> int:
        """The publisher looks for reports, and subscribers report, after this many messages."""
        return max(1, self.window // REPORTS_PER_WINDOW)

    def numbers(self) -> Iterator[int]:
        """The numbers of the messages, each when it is due."""
        began = time.monotonic()
        for number in count():
            now = time.monotonic()
            due = now if self.rate is None else began + number / self.rate
            if max(now, due) - began >= self.seconds or number == self.messages_max:
                return
            if due > now:
                time.sleep(due - now)
            yield number


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Of all subscribers of a process: how many messages each has received or lost, at least, and
    the sums; `at_seconds` is the monotonic time of the last one."""

    position: int
    received: int
    lost: int
    at_seconds: float


def lost_count(item: Message | Lost) -> int:
    """How many messages an item stands for that were dropped; raises BusError if nobody knows."""
    if isinstance(item, Message):
        return 0
    if item.count is None:
        raise BusError("the bus dropped messages without counting them")
    return item.count


# -- round trips -----------------------------------------------------------------------------------
def round_trips(
    publisher: Client, subscriber: Client, key: bytes, plan: LoadPlan
) -> tuple[list[float], int]:
    """The times in seconds from publishing a message until it was received, one at a time; and how
    many were lost."""
    times: list[float] = []
    payload = bytes(plan.size_bytes)
    lost = 0
    for _ in plan.numbers():
        started = time.monotonic()
        publisher.publish(key, payload, timeout_seconds=WAIT_SECONDS_MAX)
        dropped = lost_count(subscriber.receive(timeout_seconds=WAIT_SECONDS_MAX))
        if dropped:
            lost += dropped
        else:
            times.append(time.monotonic() - started)
    return times, lost


# -- the other process -----------------------------------------------------------------------------
class Helper:
    """A process that works for this one, until the `with` block ends; it reports through a pipe."""

    def __init__(self, target: Callable[[Pipe], None]) -> None:
        context = get_context("fork")
        self._pipe, its_end = context.Pipe()
        self._process = context.Process(
            target=_help, args=(target, self._pipe, its_end), daemon=True
        )
        self._process.start()
        its_end.close()

    def report(self) -> object:
        """Its next report. Raises the error that ended it, and BusError when it is silent."""
        if not self._pipe.poll(WAIT_SECONDS_MAX):
            raise BusError(f"the messages did not arrive within {WAIT_SECONDS_MAX:g} s")
        try:
            report: object = self._pipe.recv()
        except EOFError:
            raise BusError("a process of the benchmark has ended unexpectedly") from None
        if isinstance(report, SbusError):
            raise report
        return report

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def has_report(self) -> bool:
        return self._pipe.poll()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(WAIT_SECONDS_MAX)
        self._process.terminate()
        self._process.join()


def _help(target: Callable[[Pipe], None], parents_end: Pipe, pipe: Pipe) -> None:
    """What a helper runs. It ends when the pipe does, also when the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's business
    parents_end.close()
    with contextlib.suppress(BrokenPipeError):
        try:
            target(pipe)
        except (SbusError, TimeoutError) as error:
            pipe.send(BusError(str(error)))


class Subscribers:
    """Subscribers in a process of their own, all with the same pattern."""

    def __init__(self, connect: Connect, pattern: bytes, number: int, step: int) -> None:
        self._helper = Helper(lambda pipe: _receive(pipe, connect, pattern, number, step))
        self.progress = Progress(position=0, received=0, lost=0, at_seconds=0.0)

    def __enter__(self) -> Self:
        self._helper.__enter__()
        self._take_report()  # all are subscribed
        return self

    def __exit__(self, *exception: object) -> None:
        self._helper.__exit__(*exception)

    @property
    def pid(self) -> int:
        return self._helper.pid

    def look(self) -> None:
        """Take the reports that are there."""
        while self._helper.has_report():
            self._take_report()

    def wait_until(self, position: int) -> None:
        """Return when every subscriber has received, or lost, so many messages."""
        self.look()
        while self.progress.position < position:
            self._take_report()

    def _take_report(self) -> None:
        report = self._helper.report()
        assert isinstance(report, Progress)
        self.progress = report


def _receive(pipe: Pipe, connect: Connect, pattern: bytes, number: int, step: int) -> None:
    """All subscribers receive the same messages, so each is read until it has as many as the first
    one: a wait for one that has less always ends."""
    with contextlib.ExitStack() as stack:
        first, *others = clients = [stack.enter_context(connect()) for _ in range(number)]
        for bus in clients:
            bus.subscribe(pattern)
            bus.sync(timeout_seconds=WAIT_SECONDS_MAX)
        last_seconds = time.monotonic()
        pipe.send(_progress(clients, last_seconds))
        reported, is_idle = 0, False
        while not (is_idle and pipe.poll()):
            is_idle = True
            with contextlib.suppress(TimeoutError):
                is_idle = not first.receive_many(timeout_seconds=IDLE_SECONDS)
            position = _position(first)
            for bus in others:
                while _position(bus) < position:
                    bus.receive_many(timeout_seconds=WAIT_SECONDS_MAX)
            if not is_idle:
                last_seconds = time.monotonic()
            if position - reported >= (1 if is_idle else step):
                reported = position
                pipe.send(_progress(clients, last_seconds))


def _position(bus: Client) -> int:
    """How many messages it has received or lost."""
    statistics = bus.statistics()
    return statistics.messages_received + statistics.messages_lost


def _progress(clients: list[Client], at_seconds: float) -> Progress:
    all_statistics = [bus.statistics() for bus in clients]
    return Progress(
        position=min(map(_position, clients)),
        received=sum(statistics.messages_received for statistics in all_statistics),
        lost=sum(statistics.messages_lost for statistics in all_statistics),
        at_seconds=at_seconds,
    )


def flood(connect: Connect, key: bytes, plan: LoadPlan, publishers: int) -> Helper:
    """A process whose publishers take turns without waiting for any subscriber. It reports when all
    are connected, and at the end how many messages it published."""

    def publish(pipe: Pipe) -> None:
        payload = bytes(plan.size_bytes)
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connect()) for _ in range(publishers)]
            pipe.send(0)
            published = 0
            for number in plan.numbers():
                bus = clients[number % publishers]
                bus.publish(key, payload, timeout_seconds=WAIT_SECONDS_MAX)
                published = number + 1
            for bus in clients:
                bus.sync(timeout_seconds=WAIT_SECONDS_MAX)
            pipe.send(published)

    return Helper(publish)
