"""The records in Python: the same fields as the types of the same names in `_step.c`."""


class OutboxRecord:
    """Of an outbox: where a message goes, and what has gone there."""

    __slots__ = (
        *("accepted", "account_place", "delivered_bytes", "fd", "is_flowing"),
        *("drop_counter", "drops_from_bytes", "new_drops", "slot_at", "spared_account"),
        "wants_sender",
    )

    account_place: int
    """Of its client's user's account, among all accounts."""
    fd: int
    """The client's socket; -1 when the outbox is closed."""
    is_flowing: bool
    """A message is sent at once: nothing waits, and the client is there."""
    wants_sender: bool
    """The client is told with each message who has published it, and its place in the order."""
    accepted: int
    """Messages."""
    delivered_bytes: int
    slot_at: int
    """Where the client's slot begins, among the words of all slots."""
    drops_from_bytes: int
    """While nothing is sent at once, messages of this size and larger are only counted."""
    spared_account: int
    """But for those of the user with the account at this place; negative: nobody."""
    drop_counter: int
    """Where they are counted, among the worker's statistics."""
    new_drops: int
    """Messages that were only counted and are not settled yet; all for the same reason."""


class RouteRecord:
    """Of a route: the other workers, as a mask, the recipients here, and back-pressure rules."""

    __slots__ = ("backpressure_rules", "mask", "recipients")

    mask: int


class SessionRecord:
    """Of a session: who it is, its limits, what it has sent, and what of that is pending."""

    __slots__ = (
        *("account_place", "client", "echo", "fd", "gid", "outbox", "pid", "slot_at", "uid"),
        *("is_at_rest", "is_ordinary", "is_readable", "may_carry_descriptors"),
        *("batch_bytes_max", "batch_packets_max", "packet_bytes_max"),
        *("bytes_in", "done", "messages_in", "packets", "received_us"),
    )

    client: int
    uid: int
    """Like the two below, the peer's own, as `whoami` tells them."""
    gid: int
    pid: int
    account_place: int
    """Of its user's account, among all accounts. The user of a subordinate id is its owner."""
    slot_at: int
    """Where its slot begins, among the words of all slots."""
    fd: int
    """Its socket; -1 when it is closed."""
    echo: bool
    """Whether it receives its own messages."""
    is_ordinary: bool
    """Its messages need no look at access rules."""
    is_at_rest: bool
    """Its last turn left nothing to do, and nothing that it has to wait for."""
    is_readable: bool
    """The socket may have more packets than the last batch."""
    may_carry_descriptors: bool
    """Its packets may have descriptors attached; Python reads those that have."""
    batch_packets_max: int
    batch_bytes_max: int
    packet_bytes_max: int
    received_us: int
    """When the last batch was read, by `time.monotonic_ns`."""
    messages_in: int
    """Messages published so far."""
    bytes_in: int
    """Bytes read so far, of all kinds of packets."""
    packets: list[bytes]
    """What was read last; the packets behind the first `done` of them are pending."""
    done: int


class OriginRecord:
    """Who has published what is being delivered, and the place of that in the total order."""

    __slots__ = ("account_place", "client", "gid", "pid", "place", "uid")

    client: int
    uid: int
    gid: int
    pid: int
    account_place: int
    """As in a session."""
    place: int


class LogRecord:
    """Of the ordered log: how far this worker has walked, and what may wait for it."""

    __slots__ = ("cursor", "entries", "entry_bytes", "is_caught_up", "window")

    cursor: int
    entries: int
    window: int
    entry_bytes: int
    is_caught_up: bool


class TableRecord:
    """Of the subscription table: how far this process has read."""

    __slots__ = ("epoch", "position")

    epoch: int
    position: int
