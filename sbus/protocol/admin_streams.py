"""The packets of a stream, which a `monitor` or `events` request begins.

Every process of the bus writes to the connection by itself, after the reply and even before it: one
JSON object per packet, whose first field `stream` is its type. A packet for which the connection
has no room is not sent. Each *source* (a process, by its pid) says in its next packet how many
items it has `missed` so far, except in `recipients`. So for every source

    messages (or events) sent  +  missed  =  all since the stream began there

The recipients of a message may be clients of several workers. The publisher's worker sends the
message with the number of its own recipients, the other workers that have recipients, and the place
in the log: the position of a block, and the number of an entry in it. Each of those workers then
sends the number of its recipients for that place. If a worker dies, or a packet has no room, the
recipients of a message stay unknown.

Keys, patterns and program names are text as written by `text.to_text`; payloads are base64.
"""

from typing import Any, Final

import msgspec

STREAM_PACKET_BYTES_MAX: Final = 128 * 1024
PART_BYTES_MAX: Final = 48 * 1024
"""Payload bytes of one message in one packet."""
BEGINNING: Final = b'{"stream":'
"""The first bytes of every packet of a stream; no reply begins so."""


class _Packet(msgspec.Struct, frozen=True, kw_only=True, tag_field="stream", tag=str.lower):
    source: int


class Messages(_Packet, frozen=True, kw_only=True, omit_defaults=True):
    """Messages of a publish batch of one client, column by column; `worker` is its worker's
    number. Of secret messages only the key is sent."""

    missed: int
    worker: int
    time: float
    """When they got their place in the order, in seconds since 1970."""
    order: int
    """The same in nanoseconds since boot; it increases with the total order."""
    block: int
    client: int
    uid: int
    gid: int
    pid: int
    program: str
    keys: list[str]
    sizes: list[int | None]
    """Of the payloads, in bytes; null for secret messages."""
    recipients: list[int]
    """Recipients of the publisher's worker."""
    payloads: bytes | None = None
    """One after another; null if they were not requested. Shorter than all `sizes` together when
    `Part` packets with the rest of the last one follow."""
    workers: list[tuple[int, ...]] = []
    """For each message the other workers that will send the number of their recipients. Empty if
    there are none for any."""
    entries: list[int] = []
    """The numbers of their entries in the block; meaningless where there are no such workers."""


class Part(_Packet, frozen=True, kw_only=True):
    """More of the payload of the last message of this source, which sends no other packet until
    that message is complete."""

    payload: bytes


class Recipients(_Packet, frozen=True, kw_only=True):
    """The numbers of recipients of worker `worker` for these entries of a block."""

    worker: int
    block: int
    entries: list[int]
    recipients: list[int]


class Events(_Packet, frozen=True, kw_only=True):
    """Events, each with its `time` (seconds since 1970), `event` (its id), `priority`, `text`, and
    the fields of its kind."""

    missed: int
    events: list[dict[str, Any]]


class Missed(_Packet, frozen=True, kw_only=True):
    """Only how much was missed, once there is room for a packet again."""

    missed: int


class Ended(_Packet, frozen=True, kw_only=True):
    """The bus ends the stream, and why. The connection ends behind it."""

    why: str


StreamPacket = Messages | Part | Recipients | Events | Missed
