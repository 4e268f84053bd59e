"""The codes of faults: what a packet is refused for, a client disconnected, a connection refused.

They are stable, stand in `!/error` notices, and are what faults are counted by. Each has its line
in the protocol's documentation. This module does not know when a fault is one.
"""

from typing import Final

PACKET_CODES: Final = (
    "bad-secret-pattern",
    "empty-packet",
    "key-too-deep",
    "key-too-long",
    "kicked",
    "no-nul",
    "not-allowed",
    "not-yours",
    "packet-too-long",
    "pattern-too-deep",
    "pattern-too-long",
    "reserved",
    "table-full",
    "too-many-blocking",
    "too-many-patterns",
    "too-many-secret",
    "too-slow",
    "unknown-control",
    "unknown-unsubscription",
    "unknown-word",
)
"""What is wrong with a packet, or with the client that sent it. An unknown control key and an
`UNSUB` of what the client does not have are ignored and counted, nothing more."""

CONNECTION_CODES: Final = (
    "not-admitted",
    "not-allowed",
    "too-many-connections",
    "too-many-users",
)
"""Why a connection is refused."""

DISCARD_REASONS: Final = ("soft", "hard", "quota", "unheld")
"""Why a message for a slow client is discarded: it chose so for a full socket; its backlog was
full; its user has no room for more backlog; its publisher may not be held back for it."""
