"""Publish batches: consecutive messages of a client that get their place in the order together."""

import time
from collections.abc import Callable, Iterator
from itertools import chain

from sbus.broker.delivery.backpressure import BackpressureRule
from sbus.broker.delivery.fan_out_times import Recipient
from sbus.broker.worker.router import Route
from sbus.broker.worker.session import Session
from sbus.errors import ClientFault
from sbus.limits import BYTES_PER_UNIT, UNITS_PER_SECOND
from sbus.protocol.packets import PUBLISH_WORD
from sbus.shared.in_flight import NOBODY, InFlight
from sbus.shared.log_block import LogBlock, build_log_block

Message = tuple[bytes, bytes, Route]
"""A packet, its key and its route."""


class PublishBatch:
    """Messages of one client, at the head of its pending packets.

    Messages at its end that cannot have a place now are *put off*. They become pending again and
    are gathered anew later, so that no route that waits has to be kept current.
    """

    __slots__ = (
        *("session", "messages", "put_off", "held_by"),
        *("deliveries", "delivery_bytes", "timed_seconds", "place", "receipt"),
    )

    def __init__(self, session: Session, receipt: int | None = None) -> None:
        self.session = session
        self.receipt = receipt
        """The entry that the receipt for its only message has taken, if it has one."""
        self.messages: list[Message] = []
        self.put_off: tuple[Message, ...] = ()
        """Messages that followed, and have to wait."""
        self.held_by: BackpressureRule | None = None
        """The rule of the stalled client that the first of them waits for, if it does."""
        self.place = 0
        """Of the first message, in the total order."""
        self.deliveries = 0
        """To clients of this worker, one for each message and recipient; in the end without those
        that were left out."""
        self.delivery_bytes = 0
        self.timed_seconds = 0.0
        """Of what is charged by its time: looking the routes up, and showing the messages to
        watchers."""

    @property
    def timed_cost(self) -> int:
        return int(self.timed_seconds * UNITS_PER_SECOND)

    @property
    def cost(self) -> int:
        """The cost of publishing the messages, with what takes a measured time."""
        copying_cost = self.delivery_bytes // BYTES_PER_UNIT
        return self.timed_cost + len(self.messages) + self.deliveries + copying_cost

    def add(self, packet: bytes, key: bytes, route: Route) -> None:
        self.messages.append((packet, key, route))
        self.deliveries += route.fan_out
        self.delivery_bytes += len(packet) * route.fan_out

    def put_off_from(self, index: int, held_by: BackpressureRule | None = None) -> None:
        """Put off the message at this index and all behind it."""
        put_off = self.messages[index:]
        for packet, _, route in put_off:
            self.deliveries -= route.fan_out
            self.delivery_bytes -= len(packet) * route.fan_out
        del self.messages[index:]
        self.put_off = (*put_off, *self.put_off)
        self.held_by = held_by

    def take_back(self) -> None:
        """Put nothing off. `look_up_again` must follow, which counts the deliveries."""
        self.messages += self.put_off
        self.put_off, self.held_by = (), None

    def look_up_again(self, look_up: Callable[[bytes], Route], seconds_max: float) -> None:
        """Look up the routes again, because subscriptions have changed. Messages for which the time
        does not suffice are put off."""
        messages, self.messages = self.messages, []
        self.deliveries = self.delivery_bytes = 0
        began_at = now = time.perf_counter()
        for packet, key, _ in messages:
            self.add(packet, key, self.session.own_route(look_up(key)))
            now = time.perf_counter()
            if now - began_at > seconds_max:
                break
        self.timed_seconds += now - began_at
        if len(self.messages) < len(messages):
            self.put_off = (*messages[len(self.messages) :], *self.put_off)
            self.held_by = None

    @property
    def recipients(self) -> Iterator[Recipient]:
        """Of all messages, one after the other."""
        return chain.from_iterable(route.recipients for _, _, route in self.messages)

    def count_published(self) -> None:
        """Count the messages that were published; those that were put off are pending again."""
        self.session.messages_in += len(self.messages)
        self.session.done -= len(self.put_off)

    def begin_flight(self, in_flight: InFlight) -> int:
        """Let a successor of the worker know the recipients; returns the number of the batch."""
        but_for = NOBODY if self.session.echo else self.session.slot_at
        return in_flight.begin_batch(but_for, (key for _, key, _ in self.messages))

    def log_block(self, receipt: int = 0) -> LogBlock | None:
        """The messages that other workers need, if any, as a log block; `receipt` refers to what
        their receipt has taken."""
        entries = [
            (route.mask, packet, len(key), number)
            for number, (packet, key, route) in enumerate(self.messages)
            if route.mask
        ]
        if not entries:
            return None
        return build_log_block(self.session.publisher, self.session.received_us, entries, receipt)


def gather(
    session: Session,
    recent: dict[bytes, Route],
    look_up: Callable[[bytes], Route],
    cost_max: int,
) -> PublishBatch:
    """Make a publish batch of the messages at the head of the pending packets, up to this cost.

    It ends before any other packet, and before a message that may not be published. While all keys
    are `recent`, it is ordinary, and ends before the first key that is not.
    """
    batch = PublishBatch(session)
    packets = session.packets
    messages = batch.messages
    count, size_max = len(packets), session.packet_bytes_max
    at = session.done
    deliveries = delivery_bytes = 0
    has_looked_up = False
    # A message costs 1, and moves `at` on by 1, so `deliveries + at` grows as the cost does.
    cost_left = cost_max + at
    while at < count and deliveries + at < cost_left:
        packet = packets[at]
        size = len(packet)
        if packet[:4] != PUBLISH_WORD or size > size_max:
            break
        end = packet.find(b"\0", 4)
        if end < 0:
            break
        key = packet[4:end]
        route = recent.get(key)
        if route is None:
            if messages and not has_looked_up:
                break
            has_looked_up = True
            began_at = time.perf_counter()
            try:
                route = look_up(key)
            except ClientFault:
                break
            batch.timed_seconds += time.perf_counter() - began_at
            cost_left = cost_max + session.done - batch.timed_cost
        if not session.echo:
            route = session.own_route(route)
        messages.append((packet, key, route))
        fan_out = route.fan_out
        deliveries += fan_out
        delivery_bytes += size * fan_out
        at += 1
    session.done = at
    batch.deliveries = deliveries
    batch.delivery_bytes = delivery_bytes
    return batch
