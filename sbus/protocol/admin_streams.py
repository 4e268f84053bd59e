"""What a `monitor` or `events` request is followed by: a stream of packets, after and even before
the reply.

Every process of the bus that has something to tell writes to the connection by itself, one JSON
object per packet, whose first field `stream` says which of these it is. A packet that the
connection has no room for is not sent; how much was `missed` for that is counted by each *source*
(a process, by its pid) and stands in whatever that sends next, but for `recipients`. So for every
source

    messages (or events) sent  +  missed  =  all that there were since the stream began there

The recipients of a message may be clients of several workers. Its publisher's worker tells the
message, with its own recipients and the other workers that will count theirs, and its place in the
log: the position of a block, and the number of an entry in it. Each of those workers then tells how
many recipients it had for that place. A worker that dies, or a packet without room, leaves a
message whose recipients stay unknown.

Keys, patterns and program names are text as `text.to_text` writes it, payloads base64. Pure: knows
neither sockets nor how the parts are joined.
"""

from typing import Any, Final

import msgspec

STREAM_PACKET_BYTES_MAX: Final = 128 * 1024
"""Of any packet of a stream."""
PART_BYTES_MAX: Final = 48 * 1024
"""Payload bytes in one packet, if they are of one message."""
BEGINNING: Final = b'{"stream":'
"""How every packet of a stream begins, and no reply does."""


class _Packet(msgspec.Struct, frozen=True, kw_only=True, tag_field="stream", tag=str.lower):
    source: int


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message. Of a secret one only the key is told: `size` and `payload` are null."""

    key: str
    size: int | None
    """Of the payload, in bytes."""
    recipients: int
    """Clients of the publisher's worker that it was accepted for."""
    payload: bytes | None = None
    """Null if it was not asked for. Shorter than `size` when `Part` packets with the rest
    follow."""
    workers: tuple[int, ...] = ()
    """Other workers that will tell how many recipients they had."""
    entry: int = 0
    """The number of its entry in the block; without meaning where `workers` is empty."""


class Messages(_Packet, frozen=True, kw_only=True):
    """Messages that one client published in one go; `worker` is its worker's number."""

    missed: int
    worker: int
    time: float
    """When they got their place in the order, in seconds since 1970."""
    order: int
    """The same in nanoseconds since boot: messages have it in the order of the bus."""
    block: int
    client: int
    uid: int
    gid: int
    pid: int
    program: str
    messages: list[Message]


class Part(_Packet, frozen=True, kw_only=True):
    """More of the payload of the last message that this source told, which is thereby complete or
    not yet. The source sends no other packet before it is."""

    payload: bytes


class Recipients(_Packet, frozen=True, kw_only=True):
    """How many recipients worker `worker` had: (block, entry, recipients) of each message."""

    worker: int
    counts: list[tuple[int, int, int]]


class Events(_Packet, frozen=True, kw_only=True):
    """What happened: of each event its `time` (seconds since 1970), `event` (its id), `priority`,
    `text`, and the fields of its kind."""

    missed: int
    events: list[dict[str, Any]]


class Missed(_Packet, frozen=True, kw_only=True):
    """Nothing but how much was missed, when there is room to tell it again."""

    missed: int


StreamPacket = Messages | Part | Recipients | Events | Missed
