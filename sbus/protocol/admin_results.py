"""The results of the admin protocol, by verb.

Keys, patterns and program names are text as written by `text.to_text`. Times are in seconds since
1970, durations in seconds, sizes in bytes. Counters only grow while the bus runs, even when a
worker dies. If a worker does not answer in time, the facts that only it knows are missing, and its
number is in `unanswered`.
"""

from typing import Literal

import msgspec

from sbus.limits import UserLimits


class Latency(msgspec.Struct, frozen=True):
    """How long deliveries took inside the broker: from reading the publisher's packet until it was
    sent or put in the recipient's backlog. `counts[i]` took at most `bounds_us[i]` microseconds and
    more than the previous bound; the last count is above all bounds."""

    bounds_us: list[int]
    counts: list[int]
    sum_us: int


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of a worker or of the whole bus. In messages and in bytes of packets,
    accepted = delivered + discarded + replaced + undelivered + backlog."""

    messages_in: int
    """Published; refused messages do not count."""
    bytes_in: int
    """Read from clients, in all packets."""
    accepted: int
    """Deliveries, one for each message and recipient."""
    accepted_bytes: int
    delivered: int
    delivered_bytes: int
    discarded: dict[str, int]
    """By reason, see `DROP_REASONS`."""
    discarded_bytes: int
    replaced: int = 0
    """By newer messages of the same key, in backlogs in order `latest`."""
    replaced_bytes: int = 0
    undelivered: int
    """Were in the backlog of a client that left or was disconnected."""
    undelivered_bytes: int
    backlog: int
    """Now."""
    backlog_bytes: int
    refused: dict[str, int]
    """Packets refused or ignored, and clients disconnected for a fault, by code; without zeros."""
    stalls: int
    """How often a client had no room and its publishers had to be held back."""
    slow_sends: int
    """Sends to clients, and looks at their processes, that were charged to the clients' users."""
    subscriptions: int
    """Now; each occurrence of a pattern counts."""
    route_lookups: int
    route_misses: int
    """Lookups of keys that were not in the route cache."""
    latency: Latency


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Averages over the last `window_seconds`; that is 0 while nothing is known yet."""

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
    """How many workers with this number have died."""
    silence_seconds: float
    """Since its last heartbeat; there is about one in a second."""
    cpu_seconds: float
    busy_share: float
    """Of the last second: 0 for a worker that slept, 1 for one that always had work."""
    memory_bytes: int
    clients: int
    traffic: Traffic
    rates: Rates


class Fill(msgspec.Struct, frozen=True):
    """How full a part of the shared memory is."""

    used_bytes: int
    size_bytes: int


class LongestOperation(msgspec.Struct, frozen=True, kw_only=True):
    """The longest time for which a process did one thing and served nobody else, since the bus
    started; and, perhaps another time, the longest of its CPU time."""

    process: str
    """`front`, or the number of a worker."""
    operation: str
    """Its kind: `tick`, `walk`, `match`, `hold`, `backlog` or `command` of a worker, `callback`,
    `answer` or `hold` of the front."""
    seconds: float
    cpu_seconds: float


class StatsResult(msgspec.Struct, frozen=True, kw_only=True):
    """`log` and `table` are null if the lock of the shared memory was not free in time."""

    address: str
    step: str
    """What does the ordinary step of the workers: "compiled" or "python"."""
    started_at: float
    uptime_seconds: float
    draining: bool
    clients: int
    stored_clients: int = 0
    """Clients in the descriptor store of the service manager."""
    users: int
    """Users with at least one connection."""
    connections_accepted: int
    connections_refused: dict[str, int]
    """By code, see `CONNECTION_CODES`."""
    missing_names: int = 0
    """Users and groups of the configuration that the host does not know."""
    stalled_clients: int
    """Now."""
    log: Fill | None
    """The ordered log."""
    table: Fill | None
    """The subscription table."""
    traffic: Traffic
    rates: Rates
    workers: list[WorkerReport]
    longest_operations: list[LongestOperation]


class WorkersResult(msgspec.Struct, frozen=True):
    workers: list[WorkerReport]


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What a client did, and what happened to messages for it, since it connected or its worker
    died."""

    messages_in: int
    bytes_in: int
    accepted: int
    delivered: int
    delivered_bytes: int
    discarded: int
    replaced: int = 0
    """In its backlog, by newer messages of the same key."""
    backlog: int
    backlog_bytes: int
    socket_bytes: int
    """Memory of the kernel for what it has not read from its socket."""
    subscriptions: int
    refused: int
    soft: str
    hard: str
    order: str
    age_ms_max: int = 0
    """After which messages in its backlog are dropped; 0 if there is no limit."""
    stalled: bool
    """It has no room, and its publishers are held back."""
    waits_for: Literal["", "room", "rate", "stall"]
    """Why it is not read: the bus has no room, its user publishes too fast, a recipient stalls."""


class ClientReport(msgspec.Struct, frozen=True, kw_only=True):
    """One client, with its peer credentials. `program` is "" if the process has ended."""

    client: int
    uid: int
    gid: int
    pid: int
    program: str
    worker: int
    connected_at: float
    activity: Activity | None
    """Null when its worker did not answer; also of a client that has left and has not read
    everything, which its worker does not serve any more."""


class ClientsResult(msgspec.Struct, frozen=True, kw_only=True):
    clients: list[ClientReport]
    next: int | None
    unanswered: list[int]


class SubscriptionReport(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern of a client, and how often the client is subscribed to it."""

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
    """What a user has and may have on the bus."""

    uid: int
    connections: int
    subscriptions: int
    subscription_bytes: int
    match_steps: int
    """What matching a key may take at most because of its patterns."""
    backlog_bytes: int
    """As the limit counts them: each message with 64 bytes of overhead."""
    socket_bytes: int
    """For what the kernel keeps in the sockets of its clients, beyond small buffers."""
    waiting_bytes: int
    """Read from its clients, and not processed yet."""
    blocking_clients: int
    """Clients that may hold publishers back."""
    held_seconds: float
    """How long its clients held publishers back in the last minute."""
    discarded: int
    """Messages for its clients, including clients that have left."""
    limits: UserLimits


class UsersResult(msgspec.Struct, frozen=True, kw_only=True):
    users: list[UserReport]
    next: int | None


WhyNot = Literal["", "not-allowed", "not-yours", "process-ended", "disconnecting"]


class Recipient(msgspec.Struct, frozen=True, kw_only=True):
    """A client with a matching pattern. `why_not` is "" if it would receive the message."""

    client: int
    uid: int
    pid: int
    program: str
    worker: int
    patterns: list[str]
    """Its matching patterns, at most ten."""
    backlog: int
    stalled: bool
    why_not: WhyNot
    text: str
    """The details of `why_not`: which rule, which id."""


class ExplainResult(msgspec.Struct, frozen=True, kw_only=True):
    """`recipients` and `excluded` list some clients; the counts are of all."""

    key: str
    secret: bool
    recipients: list[Recipient]
    recipients_count: int
    excluded: list[Recipient]
    excluded_count: int
    workers: list[int]
    """Workers that have recipients."""
    stalled_count: int
    """Recipients for which publishers are, or would be, held back."""
    unanswered: list[int]


class KickResult(msgspec.Struct, frozen=True):
    client: int
    uid: int
    pid: int
    program: str


class MoveResult(msgspec.Struct, frozen=True):
    """The worker that serves the client now, and why that is not the one that was asked for; ""
    if it is."""

    client: int
    worker: int
    why_not: str = ""


class LimitResult(msgspec.Struct, frozen=True):
    uid: int
    before: UserLimits
    after: UserLimits


class ReloadResult(msgspec.Struct, frozen=True):
    """Settings that changed and are in force now, and settings that changed in the file but stay
    as they are until the bus is restarted. Names are as in the file: `bus.soft`,
    `limits.user_connections_max`, `users.alice.connections_max`, `rules`. If there are very many,
    the last entry says how many more."""

    applied: list[str]
    needs_restart: list[str]
    unanswered: list[int] = []
    """Workers that did not confirm in time; they apply the settings as soon as they can."""


class UpgradeResult(msgspec.Struct, frozen=True):
    """Another process serves the bus from now on."""

    version: str
    """Of its program."""
    pid: int
    """0 if that is not known."""
    clients: int
    """Clients that it has taken over."""
    pause_seconds: float
    """For how long nobody was served."""


class TakeOverResult(msgspec.Struct, frozen=True):
    """The bus waits for the other program to greet."""


class DrainResult(msgspec.Struct, frozen=True):
    clients: int
    """Clients that are left."""


class VersionResult(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    protocol: int
    python: str
    step: str
    """As in `StatsResult`."""
    address: str
    dialect: str
    workers: int
    pid: int
    started_at: float


class MonitorResult(msgspec.Struct, frozen=True):
    """The stream has begun, except on the `unanswered` workers; a stream of messages contains all
    with this `order` or a larger one."""

    unanswered: list[int]
    order: int


EventsResult = MonitorResult


class MeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What any user may learn about itself over the bus."""

    user: UserReport
    clients: list[ClientReport]
    """The first ones; `user.connections` counts all."""
    subscriptions: list[SubscriptionReport]
    """Some of them; `user.subscriptions` counts all."""
    unanswered: list[int]
    version: str = ""
    """Of the bus; empty from one before this field."""


def total(record: Traffic | Activity, counter: str) -> int:
    """A counter, or the sum of counters by reason or code."""
    value = getattr(record, counter)
    return int(sum(value.values()) if isinstance(value, dict) else value)
