"""Keeping the newest message of each key, and joining it, for programs without an event loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sbus.client.blocking_link import BlockingLink, Deadline
from sbus.client.blocking_subscription import Subscription, send_at_end, subscribed
from sbus.client.message_queue import MessageQueue
from sbus.client.snapshot import Joining
from sbus.client.value_store import ValueStore
from sbus.protocol.last_values import request_key
from sbus.protocol.packets import SUBSCRIBE_WORD, encode_subscribe, undone

MESSAGES_AT_ONCE = 1024


@contextmanager
def joined(
    io: BlockingLink[Any], pattern: bytes, deadline: Deadline
) -> Iterator[Subscription[Any]]:
    """The last values and what follows them, within the block; see `Connection.last_values`."""
    link = io.link
    packet = encode_subscribe(pattern)
    queue = link.new_queue("report")
    messages = link.new_queue()
    with subscribed(io, [packet], queue, deadline):
        with io.call:
            _join(io, packet, (queue, messages), deadline)
        try:
            yield Subscription(io, messages)
        finally:
            link.inbox.routes.close(messages)


def _join(
    io: BlockingLink[Any],
    packet: bytes,
    queues: tuple[MessageQueue[Any], MessageQueue[Any]],
    deadline: Deadline,
) -> None:
    """Fill the second queue, which is for the program, from the first one, and have what comes
    after it go there."""
    queue, messages = queues
    link = io.link
    io.ask(link.barrier, deadline)
    own_key, messages_max = link.identity().key, link.queue_messages_max
    joining = Joining(packet.removeprefix(SUBSCRIBE_WORD), own_key, messages_max=messages_max)
    own = [encode_subscribe(joining.request_key), encode_subscribe(joining.reply_key)]
    link.inbox.routes.open([packet, *own], queue)
    try:
        for subscription in own:
            io.send(subscription, deadline)
        while not joining.is_complete:
            if joining.must_ask:
                io.send(link.encoder.publish(joining.request_key, joining.request()), deadline)
            for item in io.take_many(queue, MESSAGES_AT_ONCE, deadline):
                joining.feed(item)
        for item in queue.take_many(len(queue) or 1):
            joining.feed(item)
        joining.move_to(messages)
        link.inbox.routes.open([packet], messages)
        link.inbox.routes.close(queue)
    finally:
        send_at_end(io, [undone(subscription) for subscription in own])


def serve(io: BlockingLink[Any], patterns: list[bytes], store: ValueStore) -> None:
    """Keep the newest messages and answer joiners; see `Connection.serve_last_values`."""
    forever = Deadline(None)
    queue = io.link.new_queue("report")
    packets = [encode_subscribe(text) for it in patterns for text in (it, request_key(it))]
    with subscribed(io, packets, queue, forever):
        while True:
            for item in io.take_many(queue, MESSAGES_AT_ONCE, forever):
                for key, payload in store.feed(item):
                    io.send(io.link.encoder.publish(key, payload), forever)
