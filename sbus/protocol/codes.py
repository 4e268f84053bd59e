"""Codes: why a packet is refused, a client disconnected, a connection refused, a message dropped.

They are stable. They appear in `!/error` notices, and statistics count faults by code.
docs/protocol.md explains each.
"""

from typing import Final

PACKET_CODES: Final = (
    "bad-name",
    "bad-secret-pattern",
    "bad-token",
    "bad-will",
    "empty-packet",
    "has-descriptors",
    "has-name",
    "key-too-deep",
    "key-too-long",
    "kicked",
    "kills-workers",
    "name-taken",
    "no-nul",
    "not-allowed",
    "not-yours",
    "packet-too-long",
    "packets-lost",
    "pattern-too-deep",
    "pattern-too-long",
    "reserved",
    "table-full",
    "too-many-blocking",
    "too-many-patterns",
    "too-many-secret",
    "too-many-steps",
    "too-slow",
    "unknown-control",
    "unknown-unsubscription",
    "unknown-word",
)
"""What is wrong with a packet, or with the client that sent it. Unknown control keys, and `UNSUB`
without a subscription, are only ignored and counted."""

CONNECTION_CODES: Final = ("not-admitted", "too-many-connections", "too-many-users")
"""Why a connection is refused."""

END_TEXTS: Final = {
    "bus-failed": "a process of the bus has failed, and the bus ends",
    "draining": "the bus was drained, and the time for clients to leave is over",
    "stopping": "the bus ends, or is restarted",
    "worker-died": "a worker of the bus died, and its successor could not serve this client",
}
"""Why the bus ends the connections of all clients, or of a worker's, by code; the text is for
people."""

DROP_REASONS: Final = ("soft", "hard", "quota", "unheld", "fan-out", "age")
"""Why a message is dropped. Its client is slow: by its soft policy; by its hard policy; because its
user's backlog quota is used up; because its publisher may not be held back for it. Or its user's
clients together take too much of a busy worker's time for others' messages. Or the message has
waited longer than its client wants."""

NOT_ADMITTED: Final = "not-admitted"
"""A connection is refused, and will be as long as the bus has the same configuration."""

PACKETS_LOST: Final = "packets-lost"
"""A worker died with packets of this client; which ones they are, nobody knows."""

FINAL_CODES: Final = frozenset(
    {
        *("bad-secret-pattern", "bad-token", "empty-packet", "has-descriptors", "key-too-deep"),
        "key-too-long",
        *("kicked", "kills-workers", "no-nul", "not-yours", "packet-too-long", "pattern-too-deep"),
        *("pattern-too-long", "unknown-word"),
    }
)
"""Why a client is disconnected that should not simply connect again: what it does is wrong, or an
administrator does not want it."""

LAST_CODES: Final = frozenset(
    {
        *(FINAL_CODES | END_TEXTS.keys()),
        *("not-admitted", "too-many-connections", "too-many-users", "too-slow"),
    }
)
"""Codes that only the last packet of a connection has."""
