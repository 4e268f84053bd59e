"""The answers of the admin protocol: what each verb's `result` holds.

Keys, patterns and program names are text as `text.to_text` writes it. Times are seconds since 1970,
durations seconds, sizes bytes. Counters only grow while the bus lives, and survive the death of a
worker. What only a worker knows is missing where one does not answer in time; then its number is in
`unanswered`.

Pure: knows neither requests nor where the figures come from.
"""

from typing import Literal

import msgspec

from sbus.limits import UserLimits


class Latency(msgspec.Struct, frozen=True):
    """How long deliveries took inside the broker: from when the publisher's packet was read until
    it was sent, or stood in the recipient's backlog. `counts[i]` took at most `bounds_us[i]`, and
    more than the bound before; the last one more than any bound. Microseconds."""

    bounds_us: list[int]
    counts: list[int]
    sum_us: int


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What went through a worker or, summed, through the bus. In messages and in bytes of packets,
    accepted = delivered + discarded + undelivered + backlog."""

    messages_in: int
    """Published; refused ones do not count."""
    bytes_in: int
    """Read from clients, whatever it was."""
    accepted: int
    """Deliveries, one for each message and recipient."""
    accepted_bytes: int
    delivered: int
    delivered_bytes: int
    discarded: dict[str, int]
    """By reason, see `DISCARD_REASONS`."""
    discarded_bytes: int
    undelivered: int
    """Stood in the backlog of a client that left or was disconnected."""
    undelivered_bytes: int
    backlog: int
    """Now."""
    backlog_bytes: int
    refused: dict[str, int]
    """Packets refused or ignored, and clients disconnected for what they did, by code; only codes
    that came."""
    stalls: int
    """How often a client had no room and its publishers were to be held back."""
    subscriptions: int
    """Now; each occurrence of a pattern counts."""
    route_lookups: int
    route_misses: int
    """Of those lookups, keys that were not in the route cache."""
    latency: Latency


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a second, over the last `window_seconds`; 0 long when nothing is known
    yet."""

    window_seconds: float
    messages_in_per_second: float
    bytes_in_per_second: float
    delivered_per_second: float
    delivered_bytes_per_second: float
    discarded_per_second: float
    refused_per_second: float


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. `pid`, `cpu_seconds` and `memory_bytes` are 0 while there is no process."""

    worker: int
    pid: int
    state: Literal["starting", "serving", "silent"]
    started_at: float
    deaths: int
    """How many workers have died in this place."""
    silence_seconds: float
    """Since it last showed that it is alive; it beats about once in a second."""
    cpu_seconds: float
    memory_bytes: int
    clients: int
    traffic: Traffic
    rates: Rates


class Fill(msgspec.Struct, frozen=True):
    """How full something is, in bytes."""

    used_bytes: int
    size_bytes: int


class StatsResult(msgspec.Struct, frozen=True, kw_only=True):
    """`log` and `table` are null when they were in use by somebody for too long to look."""

    address: str
    started_at: float
    uptime_seconds: float
    draining: bool
    clients: int
    users: int
    """With at least one connection."""
    connections_accepted: int
    connections_refused: dict[str, int]
    """By code, see `CONNECTION_CODES`."""
    stalled_clients: int
    """Now."""
    log: Fill | None
    """The ordered log."""
    table: Fill | None
    """The subscription table."""
    traffic: Traffic
    rates: Rates
    workers: list[WorkerReport]


class WorkersResult(msgspec.Struct, frozen=True):
    workers: list[WorkerReport]


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What a client did and what became of messages for it, since it connected."""

    messages_in: int
    bytes_in: int
    accepted: int
    delivered: int
    delivered_bytes: int
    discarded: int
    backlog: int
    backlog_bytes: int
    subscriptions: int
    refused: int
    soft: str
    hard: str
    order: str
    stalled: bool
    """It has no room, and its publishers are held back."""
    waits_for: Literal["", "room", "rate", "stall"]
    """Why it is not read: the bus has no room, its user publishes too fast, a recipient stalls."""


class ClientReport(msgspec.Struct, frozen=True, kw_only=True):
    """One client; its ids are the kernel's, of when it connected. `program` is "" when it ended."""

    client: int
    uid: int
    gid: int
    pid: int
    program: str
    worker: int
    connected_at: float
    activity: Activity | None
    """Null when its worker did not answer."""


class ClientsResult(msgspec.Struct, frozen=True, kw_only=True):
    clients: list[ClientReport]
    next: int | None
    unanswered: list[int]


class SubscriptionReport(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern of a client, and how often it has it."""

    pattern: str
    count: int
    client: int
    uid: int
    pid: int
    program: str
    worker: int


class SubsResult(msgspec.Struct, frozen=True, kw_only=True):
    subscriptions: list[SubscriptionReport]
    next: str | None
    unanswered: list[int]


class UserReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a user has of the bus, and may have."""

    uid: int
    connections: int
    subscriptions: int
    subscription_bytes: int
    backlog_bytes: int
    """As the limit counts them: 64 for each message besides its bytes."""
    waiting_bytes: int
    """Read of its clients, and not done yet."""
    blocking_clients: int
    """Clients that may hold publishers back."""
    held_seconds: float
    """For how long its clients held publishers back in the last minute."""
    discarded: int
    """Messages, for its clients, also those that are gone."""
    limits: UserLimits


class UsersResult(msgspec.Struct, frozen=True, kw_only=True):
    users: list[UserReport]
    next: int | None


WhyNot = Literal["", "not-allowed", "not-yours", "process-ended", "disconnecting"]


class Recipient(msgspec.Struct, frozen=True, kw_only=True):
    """A client that has a pattern that matches. `why_not` is "" for one that would receive."""

    client: int
    uid: int
    pid: int
    program: str
    worker: int
    patterns: list[str]
    """Those of its patterns that match, at most ten."""
    backlog: int
    stalled: bool
    why_not: WhyNot
    text: str
    """What `why_not` means here: which rule, which id."""


class ExplainResult(msgspec.Struct, frozen=True, kw_only=True):
    """`recipients` and `excluded` name some; how many there are is counted beside them."""

    key: str
    secret: bool
    recipients: list[Recipient]
    recipients_count: int
    excluded: list[Recipient]
    excluded_count: int
    workers: list[int]
    """Those that have recipients."""
    stalled_count: int
    """Recipients for which publishers are, or would be, held back."""
    unanswered: list[int]


class KickResult(msgspec.Struct, frozen=True):
    client: int
    uid: int
    pid: int
    program: str


class LimitResult(msgspec.Struct, frozen=True):
    uid: int
    before: UserLimits
    after: UserLimits


class ReloadResult(msgspec.Struct, frozen=True):
    """Names of settings: those that changed and are in force now, and those that changed in the
    file but stay as they are until the bus is restarted. Names are as in the file: `bus.soft`,
    `limits.user_connections_max`, `users.alice.connections_max`, `rules`. Of very many
    the last one says how many more."""

    applied: list[str]
    needs_restart: list[str]
    unanswered: list[int] = []
    """Workers that did not say in time that they go by it; they will, when they go on."""


class DrainResult(msgspec.Struct, frozen=True):
    clients: int
    """That are left."""


class VersionResult(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    protocol: int
    python: str
    address: str
    dialect: str
    workers: int
    pid: int
    started_at: float


class MonitorResult(msgspec.Struct, frozen=True):
    """The stream has begun on all workers but those: of messages, with all whose `order` is this or
    more."""

    unanswered: list[int]
    order: int


EventsResult = MonitorResult


class MeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a user is told of itself over the bus, without any rights."""

    user: UserReport
    clients: list[ClientReport]
    """The first of them; `user.connections` counts all."""
    subscriptions: list[SubscriptionReport]
    """Likewise some; `user.subscriptions` counts all."""
    unanswered: list[int]
