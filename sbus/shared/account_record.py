"""What a user has used of a bus, as a record for another bus that takes its place."""

import msgspec


class AccountRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a user has used of a bus; times are those of `time.monotonic_ns`."""

    uid: int
    messages_paid_until_ns: int = 0
    connections_paid_until_ns: int = 0
    held_spans: list[tuple[int, int]] = []
    """When its clients held publishers back."""
    dropped: int = 0
    """Messages that were dropped for its clients."""
