"""What an outbox asks of its client's worker, and tells it."""

from typing import Protocol


class OutboxListener(Protocol):
    """Of one outbox."""

    def watch_room(self, is_wanted: bool) -> None:
        """Whether to queue the backlog when the socket has room."""

    def enlarge_buffer(self) -> bool:
        """Have the kernel keep more for the client; whether it does so from now on."""

    def retry_later(self) -> None:
        """Queue the backlog in a moment, though the socket has room: the kernel has no memory."""

    def wait_for_time(self) -> None:
        """Queue the backlog when there is time to send, though the socket has room."""

    def on_control_sent(self) -> None:
        """A reply that waited does so no more."""

    def on_fault(self) -> None:
        """The client is to be disconnected, for the `fault`."""

    def on_quota_reached(self) -> None:
        """The account has no room for a message."""
