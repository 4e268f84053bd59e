"""What the front asks workers on behalf of administrators and users, and what they reply.

Queries and replies travel over the links as `RunQuery` and `QueryReply`. A worker encodes its reply
between two turns, small enough for one packet of a link.
"""

from typing import Final

import msgspec

from sbus.protocol.admin_results import Activity, WhyNot

PATTERN_BYTES_MAX: Final = 40 * 1024
"""Of patterns, which can be many and long, in one reply; as text they may be five times as much."""
CLIENTS_MAX: Final = 100
"""Clients that one query is about; a reply has some 300 bytes for each."""


class ActivityQuery(msgspec.Struct, frozen=True, tag=True):
    """What did these clients, at most `CLIENTS_MAX`, do? Those that have left are left out."""

    clients: list[int]


class SubscriptionsQuery(msgspec.Struct, frozen=True, tag=True):
    """Which clients have which patterns, from a place on: the client of this number, or the first
    behind it, without its first `offset` patterns."""

    client: int
    offset: int
    entries_max: int
    uid: int | None = None
    """Only clients of this user."""
    pattern: bytes | None = None
    """Only patterns that have keys in common with this one."""


class ExplanationQuery(msgspec.Struct, frozen=True, tag=True):
    """Which clients would receive a message with this key, and which would not though a pattern
    matches?"""

    key: bytes


Query = ActivityQuery | SubscriptionsQuery | ExplanationQuery

ActivityReply = dict[int, Activity]


class SubscriptionEntry(msgspec.Struct, frozen=True, array_like=True):
    """A pattern of a client, and how often it has it."""

    client: int
    pattern: bytes
    count: int


class SubscriptionsReply(msgspec.Struct, frozen=True):
    """Entries, and where to go on: None at the end."""

    entries: list[SubscriptionEntry]
    next: tuple[int, int] | None


class MatchingClient(msgspec.Struct, frozen=True):
    """A client with patterns that match; the fields are those of `admin_results.Recipient`."""

    client: int
    patterns: list[bytes]
    backlog: int
    stalled: bool
    why_not: WhyNot
    text: str


class ExplanationReply(msgspec.Struct, frozen=True):
    """Some of the recipients and of the excluded clients, and how many there are."""

    recipients: list[MatchingClient]
    recipients_count: int
    excluded: list[MatchingClient]
    excluded_count: int
    stalled_count: int
