"""The ordinary step: what a worker does for ordinary messages, in C where that was compiled.

Most messages need nothing special: their routes are known and current, no access rule or stalled
client concerns them, their user is within its rate, and the log has room. The compiled step reads
a client, gives such messages their place and delivers them, and walks over log blocks of them. It
stops at the first thing that is not ordinary and leaves it, as it was read, to the rest of this
package, which can do all of it. There, too, the step delivers a publish batch that has its place.
So `PythonStep`, which stands in where nothing was compiled, only reads and delivers.
"""

import importlib
import time
from collections.abc import Mapping
from typing import Protocol

from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.poller import Poller
from sbus.broker.worker.publish_batch import Message
from sbus.broker.worker.router import Route
from sbus.broker.worker.session import Session
from sbus.compiled import STEP
from sbus.shared.accounts import CELLS, DROPPED, account_words, log_share_at
from sbus.shared.in_flight import delivery
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import IN_FLIGHT_WORDS
from sbus.shared.subscription_table import SubscriptionTable
from sbus.shared.worker_statistics import ACCEPTED, ACCEPTED_BYTES, BYTES_IN, LATENCY


class OrdinaryStep(Protocol):
    """What `sbus.compiled._step.OrdinaryStep` does."""

    def serve(self, session: Session, cost: int, cost_max: int) -> int:
        """Read a client, unless packets of it are pending, and publish ordinary messages of it
        until the cost of its turn is this; returns the cost. Raises OSError."""

    def poll(
        self, poller: Poller, sessions: Mapping[int, Session], seconds_max: float, cost_max: int
    ) -> list[tuple[int, int]]:
        """As `poller.poll`. Meanwhile it may serve a client that is the only one ready, a batch or
        so much cost at a time: nobody else waits, so the fair queue need not be asked."""

    def deliver(self, messages: list[Message], received_us: int) -> int:
        """Deliver messages that have their place in the order, and were read at this time, to this
        worker's own clients; the context's `origin` says whose they are. Returns how many
        deliveries were left out."""

    def walk(
        self, end: int, costs: dict[int, int], walked_bytes: dict[int, int], cost_max: int
    ) -> int:
        """Walk up to `end` or this cost while log blocks are ordinary; returns the cost, which it
        also adds to `costs`, by account, as the sizes of these log blocks to `walked_bytes`."""

    def walk_piece(
        self, piece: bytes, start: int, costs: dict[int, int], walked_bytes: dict[int, int]
    ) -> int:
        """As `walk`, over what was copied from the log at `start`; returns how many bytes were
        ordinary."""


class PythonStep:
    """Reads clients and delivers, and leaves everything else to others."""

    def __init__(self, context: WorkerContext) -> None:
        self._statistics = context.statistics
        self._in_flight = context.in_flight
        self._fan_out_times = context.fan_out_times
        self._origin = context.origin

    def serve(self, session: Session, cost: int, cost_max: int) -> int:
        """Read a client, unless packets of it are pending."""
        if session.has_pending():
            return cost
        before = session.bytes_in
        cost += session.receive()
        self._statistics.counts[BYTES_IN] += session.bytes_in - before
        return cost

    def poll(
        self, poller: Poller, sessions: Mapping[int, Session], seconds_max: float, cost_max: int
    ) -> list[tuple[int, int]]:
        """Nobody is served meanwhile."""
        return self._fan_out_times.sleep_in(poller.poll, seconds_max)

    def deliver(self, messages: list[Message], received_us: int) -> int:
        """Deliver messages; returns how many deliveries were left out."""
        counts = self._statistics.counts
        before = counts[ACCEPTED]
        deliver, progress = self._fan_out_times.deliver, self._in_flight.batch_progress
        left_out = 0
        first_place, publisher = self._origin.place, self._origin.account_place
        for number, (packet, _, route) in enumerate(messages):
            self._origin.place = first_place + number
            counts[ACCEPTED] += route.fan_out
            counts[ACCEPTED_BYTES] += len(packet) * route.fan_out
            at = delivery(number, 0)
            left_out += deliver(route.recipients, packet, publisher, progress, at)
        self._in_flight.end_batch()
        latency_us = time.monotonic_ns() // 1000 - received_us
        self._statistics.record_latency(latency_us, counts[ACCEPTED] - before)
        return left_out

    def walk(
        self, end: int, costs: dict[int, int], walked_bytes: dict[int, int], cost_max: int
    ) -> int:
        """Nothing is ordinary here."""
        return 0

    def walk_piece(
        self, piece: bytes, start: int, costs: dict[int, int], walked_bytes: dict[int, int]
    ) -> int:
        """Nothing is ordinary here."""
        return 0


def make_ordinary_step(
    context: WorkerContext, recent: dict[bytes, Route], log: OrderedLog, table: SubscriptionTable
) -> OrdinaryStep:
    """The step of a worker, whose route cache has these recent routes."""
    if STEP == "python":
        return PythonStep(context)
    from sbus.compiled import _step

    _check_layout(_step.LAYOUT)
    memory, shared_counts = context.memory, context.statistics.shared
    assert shared_counts is not None
    log_end = memory.log_offset + memory.log_bytes
    own_words = context.worker * IN_FLIGHT_WORDS
    return _step.OrdinaryStep(
        lock_fd=memory.lock.fd,
        words=memory.lock.words,
        block_words=memory.lock.block_words,
        workers=memory.workers,
        worker=context.worker,
        eventfds=memory.eventfds,
        accounts=memory.accounts,
        account_words=account_words(memory.workers),
        share_at=log_share_at(memory.workers),
        drops_at=CELLS + DROPPED * memory.workers + context.worker,
        stalls=memory.stalls,
        log_bytes=memoryview(memory.map)[memory.log_offset : log_end],
        counts=context.statistics.counts,
        shared_counts=shared_counts,
        served=memory.served_clients[context.worker : context.worker + 1],
        slots=memory.client_slots,
        timed_until_ns=context.send_times.timed_until_ns,
        fan_out=context.fan_out_times.words,
        in_flight=memory.in_flight[own_words : own_words + IN_FLIGHT_WORDS],
        latency_at=LATENCY,
        recent=recent,
        log=log,
        table=table,
        origin=context.origin,
    )


def _check_layout(layout: dict[str, int]) -> None:
    """Refuse a module that was compiled for another layout of the shared memory."""
    for name, place in layout.items():
        module, _, constant = name.partition(".")
        own = getattr(importlib.import_module(f"sbus.shared.{module}"), constant)
        if own != place:
            raise ImportError(f"sbus.compiled._step has {name} = {place}, not {own}: compile anew")
