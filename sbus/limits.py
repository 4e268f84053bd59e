"""Every limit of a bus: its default, its unit and its reason.

The unit is the last word of the name, or the last before `_max`.

A limit is either a promise to clients (how large a packet may be), protection against them (how
much they can make the server hold) or a size of the machinery (how deep the log is). All are
settable.
"""

from collections.abc import Mapping
from typing import Annotated, Final, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

_MOST = 2**40
"""More than any machine has: a larger number is a typing error and no limit."""
Positive = Annotated[int, Meta(ge=1, le=_MOST)]
NotNegative = Annotated[int, Meta(ge=0, le=_MOST)]
BufferBytes = Annotated[int, Meta(ge=1, le=2**30)]
"""The kernel has 31 bits for the size of a socket's buffer, and the log 32 for a batch."""
Page = Annotated[int, Meta(ge=4096, le=_MOST)]
Quantum = Annotated[int, Meta(ge=2, le=_MOST)]
"""A turn costs a unit before anything is published in it."""
Places = Annotated[int, Meta(ge=1, le=65_536)]
"""Each takes shared memory from the start."""
KeyBytes = Annotated[int, Meta(ge=1, le=6_144)]
"""As text a byte may take five bytes, and a key has to fit a packet of the admin protocol."""
Packets = Annotated[int, Meta(ge=1, le=65_536)]
"""The log has 16 bits for the number of a message in its batch."""
Percent = Annotated[int, Meta(ge=1, le=100)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Silence = Annotated[float, Meta(ge=1, le=1e9)]
NotNegativeSeconds = Annotated[float, Meta(ge=0, le=1e9)]

T = TypeVar("T")
_RELOADABLE: Final = "reloadable"
Reloadable = Annotated[T, _RELOADABLE]
"""A limit that a running bus can change. Those of a client's socket and backlog take effect for
clients that connect later. All other limits need a restart: they are promises to clients, or the
layout of shared memory, or all processes must agree on them."""


BYTES_PER_UNIT: Final = 4096
"""A unit of cost is a packet, a delivery, or so many bytes of either."""
UNITS_PER_SECOND: Final = 250_000
"""Work that may take much longer than a message is charged by its time: looking a new key up,
packets that are no messages, such as subscriptions, closing the files that a packet carries, and
disconnecting a client for a fault."""

TIME_SLICE_NS: Final = 400_000
"""The time slice that all processes of a bus ask for. It is shorter than the default of Linux, 0.7
to 2.8 ms, so they preempt programs that keep the processors busy. The shorter it is, the more a
saturated worker costs that shares its processor with its clients: 4 % with 0.1 ms."""

OPERATION_CPU_SECONDS_MAX: Final[Mapping[str, float]] = {
    # In a worker, none of its clients is served meanwhile. Most ticks take less than 1 ms, and some
    # 10 ms where new subscriptions are read or a message has a thousand recipients.
    "tick": 0.05,
    # A window is walked in 1 ms, and in several where the routes are not in the cache.
    "walk": 0.05,
    # One lookup, which takes 5 us of ordinary patterns.
    "match": 0.02,
    # A critical section, for which all workers wait. It is to take microseconds.
    "hold": 0.02,
    # A piece of a backlog, of `quantum_units`.
    "backlog": 0.02,
    # A command of the front: the longest look at 5,000 patterns.
    "command": 0.05,
    # In the front, nobody is admitted and no worker is replaced meanwhile. The longest disconnect a
    # thousand clients of a worker that died.
    "callback": 0.05,
    # The largest pages of lists take 5 ms, a reload with a thousand users 20 ms.
    "answer": 0.05,
}
"""CPU time in which an operation of this kind is done; a longer one is logged, and one of ten times
that fails a test. Several times what was measured with a thousand clients, so that a busy host does
not matter."""
OPERATION_SECONDS_MAX: Final = 1.0
"""The same by the clock, for an operation that waits in the kernel and needs no CPU time. A busy
host makes operations longer, so this is far more."""


class UserLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one user may use of a bus: all of its connections, on all workers, together.

    A client takes at most as much of subscriptions and backlog as it leaves to its user's others.
    """

    connections_max: Positive
    connections_per_second_max: Positive
    subscriptions_max: NotNegative
    subscription_bytes_max: NotNegative
    backlog_bytes_max: NotNegative
    match_steps_max: NotNegative
    messages_per_second_max: Positive
    held_seconds_max: NotNegativeSeconds


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one bus; immutable, shared by all of its processes."""

    # -- promises to clients -------------------------------------------------------------------
    packet_bytes_max: BufferBytes = 409_600
    """Largest packet: the receive buffer of the C reference implementation."""
    key_bytes_max: KeyBytes = 4_096
    """Longest routing key; keys are kept in caches, so they cannot be as large as packets."""
    key_segments_max: Positive = 128
    """Deepest routing key; bounds the steps of one match."""
    pattern_bytes_max: KeyBytes = 4_096
    """Longest pattern: no key that it could match is longer."""
    pattern_segments_max: Positive = 128
    """Deepest pattern."""

    client_subscription_bytes_max: Reloadable[Positive] = 4 * 1024 * 1024
    """Total size of one client's patterns, each as its bytes and 64 for each segment, about the
    memory that they take in a worker: some 14,000 ordinary patterns."""

    # -- a slow client -------------------------------------------------------------------------
    socket_buffer_bytes: Reloadable[BufferBytes] = 212_992
    """`SO_SNDBUF` requested for a client's socket once 32 KiB are full, or too small for a packet.
    This is the kernel's default ceiling; the kernel doubles it, so it carries a packet of the
    largest size."""
    backlog_messages_max: Reloadable[NotNegative] = 65_536
    """Messages kept for a client whose socket is full, before the hard policy decides."""
    backlog_bytes_max: Reloadable[NotNegative] = 16 * 1024 * 1024
    """Bytes kept for a client whose socket is full, before the hard policy decides."""

    # -- one user, over all of its connections -------------------------------------------------
    user_connections_max: Reloadable[Positive] = 1_024
    """Connections of one user; what a connection may hold in memory is bounded as well."""
    user_connections_per_second_max: Reloadable[Positive] = 200
    """Connections of one user that are admitted; others wait for their turn. As many as the user
    may have come at once. Admitting one and its first messages takes about a millisecond of a
    worker, so that one user's storm takes a fifth of it."""
    user_subscriptions_max: Reloadable[NotNegative] = 131_072
    """Subscriptions of one user, each occurrence of a pattern counting."""
    user_subscription_bytes_max: Reloadable[NotNegative] = 16 * 1024 * 1024
    """Total size of one user's patterns, counted as for `client_subscription_bytes_max`."""
    user_backlog_bytes_max: Reloadable[NotNegative] = 64 * 1024 * 1024
    """Bytes kept for all of one user's clients, each message as its length and 64 of overhead, and
    192 more once it is sorted for `order/random` or has its key for `order/latest`: several clients
    at their own limit. As much again may have been read from them and wait to be processed; then
    the bus reads no further of this user's clients. And as much again the kernel may keep for them
    in large socket buffers; then they have small ones."""
    user_match_steps_max: Reloadable[NotNegative] = 512
    """Steps that a match may take because of one user's patterns: one for each different beginning
    of their shapes (`routing/shapes.py`), counted in each worker that serves such a client. A step
    takes some 0.2 us. Ordinary patterns of one user need some tens, the costliest pattern 192."""
    user_messages_per_second_max: Reloadable[Positive] = 100_000
    """Messages that one user publishes; beyond it, publishers wait and no message is refused. Fair
    queueing shares a busy worker anyway; this limit keeps one user's flood from occupying the
    processors. One twentieth of it may come at once."""
    user_held_seconds_max: Reloadable[NotNegativeSeconds] = 10.0
    """How long a user's clients may hold publishers back by `block` in any minute; after that,
    `block` acts as `discard`."""
    fan_out_us_max: Reloadable[NotNegative] = 500
    """CPU time of each worker that a message takes on average for one other user's clients while
    that worker is busy: enough to wake some 150 readers. Of more workers than processors each has
    its share: four on two processors, half of it. Messages to at most 8 clients of a worker do not
    count."""
    held_window_seconds: Silence = 60.0
    """The "any minute" of `user_held_seconds_max`."""
    users_max: Places = 1_024
    """Users with an account at one time; clients of further users are not admitted."""
    bus_subscription_bytes_max: Reloadable[NotNegative] = 24 * 1024 * 1024
    """Total size of all patterns; a client that blocks has each of them twice in the table, and an
    arena must have room for all. A user takes at most as much as it leaves to others."""
    bus_backlog_bytes_max: Reloadable[NotNegative] = 1024 * 1024 * 1024
    """Bytes kept for all clients. A user takes at most as much as it leaves to others."""
    bus_match_steps_max: Reloadable[NotNegative] = 32_768
    """The same for all users together: room for the ordinary patterns of a thousand users, and a
    match of 8 ms at worst. A user takes at most as many as it leaves to others."""
    blocking_clients_max: Places = 1_024
    """Clients of one worker that may hold publishers back; `block` of any more acts as `discard`.
    Every publisher may have to look at all of them. A user takes at most as many as it leaves to
    others."""

    # -- turns ---------------------------------------------------------------------------------
    batch_packets_max: Packets = 64
    """Packets read from one client in one turn: enough to enter the event loop once per batch and
    not once per message, few enough that the next user waits well under a millisecond."""
    batch_bytes_max: BufferBytes = 512 * 1024
    """Bytes after which a batch ends early, so that large packets make short batches."""
    quantum_units: Reloadable[Quantum] = 64
    """Cost after which a turn ends; its last message may exceed it. A unit is a packet, a delivery
    or 4 KiB of either. The next client waits that long."""

    # -- shared memory -------------------------------------------------------------------------
    log_bytes: Positive = 8 * 1024 * 1024
    """Size of the ordered log: deep enough to ride out a worker that is not scheduled for a few
    milliseconds, shallow enough that what is queued there is not old."""
    table_bytes: Page = 64 * 1024 * 1024
    """Size of each of the two arenas of the subscription table; pages are used as they fill."""
    route_cache_bytes_max: Reloadable[NotNegative] = 16 * 1024 * 1024
    """Memory a worker spends on remembering where keys go; keys are the clients' bytes."""
    rule_cache_bytes_max: Reloadable[NotNegative] = 4 * 1024 * 1024
    """Memory a worker spends on remembering which access rules apply to a key, if there are clients
    with rules about keys."""

    # -- placement -----------------------------------------------------------------------------
    worker_busy_percent_max: Reloadable[Percent] = 50
    """A worker that is busy for a larger part of its time gets no new clients while another worker
    is less busy: with half of its time left, no message waits long for a turn."""

    client_moves_per_second_max: Reloadable[NotNegative] = 100
    """Clients that are moved to other workers by load; 0: none. A move takes some 0.4 ms of two
    workers, and two records in the subscription table for each subscription; a client with more
    than 20 subscriptions counts as several."""

    # -- running -------------------------------------------------------------------------------
    watchers_max: Reloadable[NotNegative] = 16
    """Streams of messages and events at one time; every worker has a descriptor for each, and a
    publisher's worker writes to all streams that its messages match."""
    drain_packets_max: Reloadable[NotNegative] = 1_024
    """Unread packets taken off a client's socket while disconnecting it, so that it can read the
    last notice instead of a connection reset."""
    handoff_clients_max: Reloadable[Positive] = 256
    """Clients that a worker has not taken over yet; with more, it gets no new ones. The others wait
    where users have turns. So many take a worker some 50 ms. With fewer, clients that connect at
    the same time would not come together on one worker."""
    worker_silence_seconds_max: Silence = 10.0
    """A worker without a heartbeat for this long is killed and replaced; on a shared processor, a
    worker may well not run for a part of a second."""
    stop_seconds_max: Reloadable[Seconds] = 2.0
    """Time that a stopping bus gives its workers to deliver what was accepted."""
    log_interval_seconds: Reloadable[Seconds] = 10.0
    """Log entries of one kind about one user are written once in this time, with a count; and each
    process writes 100 of one kind about all users."""

    @property
    def user(self) -> UserLimits:
        """The limits of a user without limits of its own."""
        names = UserLimits.__struct_fields__
        return UserLimits(**{name: getattr(self, f"user_{name}") for name in names})

    @property
    def heartbeat_seconds(self) -> float:
        """How often a worker records its heartbeat, and the front checks all of them."""
        return min(1.0, self.worker_silence_seconds_max / 4)


RELOADABLE_LIMITS: Final = frozenset(
    name
    for name, limit in get_type_hints(Limits, include_extras=True).items()
    if _RELOADABLE in limit.__metadata__
)
