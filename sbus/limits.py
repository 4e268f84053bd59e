"""Every bound of the bus: its value, its unit (the last word of its name) and its reason.

A limit is either a promise to clients (how large a packet may be), protection against them (how
much they can make the server hold) or a size of the machinery (how deep the log is). All are
settable. This module does not know who enforces them.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Page = Annotated[int, Meta(ge=4096)]
Seconds = Annotated[float, Meta(gt=0)]
Silence = Annotated[float, Meta(ge=1)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one bus; immutable, shared by all of its processes."""

    # -- promises to clients -------------------------------------------------------------------
    packet_bytes_max: Positive = 409_600
    """Largest packet: the receive buffer of the C reference implementation."""
    key_bytes_max: Positive = 4_096
    """Longest routing key; keys are kept in caches, so they cannot be as large as packets."""
    key_segments_max: Positive = 128
    """Deepest routing key; bounds the steps of one match."""
    pattern_bytes_max: Positive = 4_096
    """Longest pattern: no key that it could match is longer."""
    pattern_segments_max: Positive = 128
    """Deepest pattern."""

    client_subscription_bytes_max: Positive = 4 * 1024 * 1024
    """What one client's patterns may add up to, each as its bytes and 64 for each segment, which is
    what they make every worker remember: some 14,000 ordinary patterns."""

    # -- a slow client -------------------------------------------------------------------------
    socket_buffer_bytes: Positive = 212_992
    """`SO_SNDBUF` asked for on the server's ends. The kernel doubles it, so its default ceiling,
    which this is, carries a packet of the largest size."""
    backlog_messages_max: NotNegative = 65_536
    """Messages kept for a client whose socket is full, before the hard policy decides."""
    backlog_bytes_max: NotNegative = 16 * 1024 * 1024
    """Bytes kept for a client whose socket is full, before the hard policy decides."""

    # -- turns ---------------------------------------------------------------------------------
    batch_packets_max: Positive = 64
    """Packets read from one client in one turn: enough to enter the event loop once per batch and
    not once per message, few enough that the next user waits well under a millisecond."""
    batch_bytes_max: Positive = 512 * 1024
    """Bytes after which a batch ends early, so that large packets make short batches."""
    quantum_units: Positive = 256
    """Work a user may cause in a turn: a unit is a packet, a delivery or 4 KiB of either."""

    # -- shared memory -------------------------------------------------------------------------
    log_bytes: Positive = 8 * 1024 * 1024
    """Size of the ordered log: deep enough to ride out a worker that is not scheduled for a few
    milliseconds, shallow enough that what is queued there is not old."""
    table_bytes: Page = 64 * 1024 * 1024
    """Size of each of the two arenas of the subscription table; pages are used as they fill."""
    route_cache_bytes_max: NotNegative = 16 * 1024 * 1024
    """Memory a worker spends on remembering where keys go; keys are the clients' bytes."""

    # -- running -------------------------------------------------------------------------------
    drain_packets_max: NotNegative = 1_024
    """Unread packets taken off a client's socket while disconnecting it, so that it can read the
    last notice instead of a connection reset."""
    handoff_clients_max: Positive = 64
    """Accepted connections waiting for a worker to take them; more wait in the listen queue."""
    worker_silence_seconds_max: Silence = 10.0
    """A worker that shows no sign of life for this long is killed and replaced; a processor that is
    shared may well be gone for a part of a second."""
    stop_seconds_max: Seconds = 2.0
    """Time that a stopping bus gives its workers to hand over what was accepted."""
    log_interval_seconds: Seconds = 10.0
    """The same complaint about the same user is logged once in this time, with a count."""

    @property
    def pulse_seconds(self) -> float:
        """How often a worker shows that it is alive, and the front looks whether all do."""
        return min(1.0, self.worker_silence_seconds_max / 4)
