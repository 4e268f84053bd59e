"""The client library for programs without an event loop.

Every call that can wait takes `timeout_seconds` and raises TimeoutError when that has passed; None
waits for ever. A call that timed out has not sent or taken anything, except that a request may have
been sent: its reply is ignored. A connection is for one thread at a time, but any thread may close
it.
"""

import contextlib
import select
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, Unpack, overload

from sbus.client.inbox import InboxStatistics, Item, Losses, Lost
from sbus.client.link import (
    CONNECT_RETRY_SECONDS,
    READ_PACKETS_MAX,
    REASON_SECONDS_MAX,
    SEND_RETRY_SECONDS,
    Link,
)
from sbus.client.options import LinkOptions
from sbus.client.requests import Identity, Requests
from sbus.errors import Disconnected
from sbus.protocol.packets import Message

if TYPE_CHECKING:
    from sbus.protocol.admin_results import MeResult


@overload
def connect(
    address: str | None = None,
    *,
    losses: Literal["raise"] = "raise",
    timeout_seconds: float | None = None,
    **options: Unpack[LinkOptions],
) -> "Connection[Message]": ...


@overload
def connect(
    address: str | None = None,
    *,
    losses: Literal["report"],
    timeout_seconds: float | None = None,
    **options: Unpack[LinkOptions],
) -> "Connection[Message | Lost]": ...


def connect(
    address: str | None = None,
    *,
    losses: Losses = "raise",
    timeout_seconds: float | None = None,
    **options: Unpack[LinkOptions],
) -> "Connection[Any]":
    """Connect to the bus at `address`. The default is `$SBUS_ADDRESS`, else the user's own bus at
    `$XDG_RUNTIME_DIR/sbus.socket`, else `/run/sbus.socket`.

    With `losses="report"` a gap in the messages is an item, `Lost`; otherwise it raises
    MessagesLost. For further options see `LinkOptions`. Use it in a `with` block, or `close` it.

    Raises AddressError, ConfigurationError, and Disconnected when the bus refuses the connection.
    """
    bus = Connection[Any](Link(address, losses, options))
    try:
        bus._open(_Deadline(timeout_seconds))
    except BaseException:
        bus.close()
        raise
    return bus


class _Deadline:
    """The moment when a call gives up, if ever."""

    def __init__(self, timeout_seconds: float | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._at = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def left_ms(self) -> float | None:
        """The time that is left, at least 0; None without a timeout."""
        return None if self._at is None else max(0.0, (self._at - time.monotonic()) * 1000)

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait so long for the event; raises TimeoutError when the deadline comes first."""
        left_ms = self.left_ms()
        if left_ms is None or left_ms >= seconds * 1000:
            event.wait(seconds)
        elif not event.wait(left_ms / 1000):
            self.expire()

    def expire(self) -> NoReturn:
        raise TimeoutError(f"the bus gave no answer within {self._timeout_seconds} s")


class Connection(Generic[Item]):
    """A connection to a bus, made by `connect`; iterating over it receives messages.

    Every call except `close` and `statistics` raises Disconnected when the bus has gone, with the
    reason if there was one, or waits for the next bus if it is to `reconnect`; and it raises
    ProtocolViolation when the peer is not a bus, and RuntimeError while another thread is in a
    call. Text is sent as UTF-8; a NUL in a key or pattern is a ValueError, and
    any other mistake in one is PacketRefused. Section names refer to
    the protocol.
    """

    def __init__(self, link: Link[Item]) -> None:
        self._link = link
        self._in_use = threading.RLock()
        """Held by the thread that is in a call; its signal handlers may call, too."""
        self._closing = threading.Event()
        """Set when another thread closes the connection."""

    # -- sending -------------------------------------------------------------------------------

    def subscribe(self, pattern: bytes | str, *, timeout_seconds: float | None = None) -> None:
        """Subscribe to `pattern`, once more than before ("Transport").

        The subscription is in force for every message that is published after a later `sync`.
        """
        self._send(self._link.encoder.subscribe(pattern), _Deadline(timeout_seconds))

    def unsubscribe(self, pattern: bytes | str, *, timeout_seconds: float | None = None) -> None:
        """Undo one `subscribe` with the same pattern ("Transport")."""
        self._send(self._link.encoder.unsubscribe(pattern), _Deadline(timeout_seconds))

    def publish(
        self,
        key: bytes | str,
        payload: bytes | str = b"",
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Publish a message; waits while the bus holds this client back.

        Raises PacketRefused for more than `packet_bytes_max` bytes; a refusal by the bus is raised
        by a later `sync`, `whoami` or `receive`.
        """
        self._send(self._link.encoder.publish(key, payload), _Deadline(timeout_seconds))

    def control(
        self,
        key: bytes | str,
        payload: bytes | str | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Send a control message ("Flood control"); ConfigurationError in the dot dialect."""
        packet, requests = self._link.control_packet(key, payload)
        self._send(packet, _Deadline(timeout_seconds), requests)

    # -- asking --------------------------------------------------------------------------------

    def sync(self, *, timeout_seconds: float | None = None) -> None:
        """Return when the bus has processed everything that was sent before.

        Raises PacketRefused if it refused any of that, MessagesUnconfirmed if the connection was
        lost meanwhile, and InboxFull when too many messages come before its reply. In the dot
        dialect the reply is a message to oneself, and a bus that drops messages for this client may
        drop it: use a timeout there.
        """
        self._ask(self._link.barrier, _Deadline(timeout_seconds))

    def whoami(self, *, timeout_seconds: float | None = None) -> Identity:
        """This client's peer credentials ("Secret messages"); includes a `sync`.

        ConfigurationError in the dot dialect.
        """
        self._link.encoder.must_have_control_messages()
        self._ask(self._link.barrier, _Deadline(timeout_seconds))
        return self._link.identity()

    def me(self, *, timeout_seconds: float | None = None) -> "MeResult":
        """What the bus knows about this client's user: clients, subscriptions, losses, limits.

        Includes a `sync`. ConfigurationError in the dot dialect. A bus of an earlier version does
        not reply: use a timeout.
        """
        self._link.encoder.must_have_control_messages()
        self._ask(self._link.inbox.me, _Deadline(timeout_seconds))
        return self._link.inbox.me.result()

    # -- receiving -----------------------------------------------------------------------------

    def receive(self, *, timeout_seconds: float | None = None) -> Item:
        """The next message.

        Raises MessagesLost exactly where messages are missing (unless losses are reported), and
        PacketRefused for packets of this client; in both cases the next call continues.
        """
        inbox = self._link.inbox
        deadline = _Deadline(timeout_seconds)
        self._enter()
        try:
            while (item := inbox.take()) is None:
                self._read(READ_PACKETS_MAX, deadline)
        finally:
            self._in_use.release()
        return item

    def receive_many(
        self, limit: int = 1024, *, timeout_seconds: float | None = None
    ) -> list[Item]:
        """Up to `limit` (at least 1) messages; waits until there is one.

        Raises the same as `receive`; a loss after other messages is raised by the next call.
        """
        deadline = _Deadline(timeout_seconds)
        inbox = self._link.inbox
        self._enter()
        try:
            while not (items := inbox.take_many(limit)):
                self._read(limit, deadline)
        finally:
            self._in_use.release()
        return items

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        try:
            return self.receive()
        except Disconnected:
            if self._link.closed:
                raise StopIteration from None
            raise

    # -- the connection itself -----------------------------------------------------------------

    @property
    def address(self) -> str:
        return self._link.address

    def statistics(self) -> InboxStatistics:
        return self._link.inbox.statistics()

    def fileno(self) -> int:
        """The socket's descriptor, to poll together with others; another one when the connection
        was made again.

        It is readable when something has arrived, not while received messages wait to be taken:
        call `receive_many` with a timeout of 0 until that raises TimeoutError, then poll.
        """
        return self._link.sock.fileno()

    def close(self) -> None:
        """Close the connection; iteration ends, other calls raise Disconnected from now on. Another
        thread may be in such a call.

        Only a `sync` before it tells whether the bus accepted what was sent.
        """
        if not self._in_use.acquire(False):
            self._link.shut_down()
            self._closing.set()
            self._in_use.acquire()
        try:
            self._link.close()
        finally:
            self._in_use.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- waiting -------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Begin a call; releasing `_in_use` ends it."""
        if not self._in_use.acquire(False):
            raise RuntimeError("another thread uses this connection: give each one of its own")

    def _open(self, deadline: _Deadline) -> None:
        while not self._link.connect_nowait():
            if deadline.left_ms() == 0:
                deadline.expire()
            time.sleep(CONNECT_RETRY_SECONDS)
        self._send(self._link.barrier.greeting, deadline)
        if self._link.can_reconnect:
            self._ask(self._link.barrier, deadline)  # later, a refusal may concern a packet

    def _send(self, packet: bytes, deadline: _Deadline, requests: Requests | None = None) -> int:
        """Send when the bus has room; returns the ticket if it is a request."""
        self._enter()
        try:
            while not self._try_to_send(packet, deadline):
                self._wait(select.POLLOUT, deadline)
            return self._link.note_request(packet, requests)
        finally:
            self._in_use.release()

    def _try_to_send(self, packet: bytes, deadline: _Deadline) -> bool:
        while True:
            try:
                return self._link.send_nowait(packet)
            except BrokenPipeError:
                self._find_reason(deadline)

    def _ask(self, requests: Requests, deadline: _Deadline) -> None:
        self._enter()
        try:
            while not self._ask_once(requests, deadline):
                pass
            self._link.inbox.raise_errors()
        finally:
            self._in_use.release()

    def _ask_once(self, requests: Requests, deadline: _Deadline) -> bool:
        """Whether the connection was not lost before the reply."""
        link = self._link
        ticket = self._send(requests.encode(), deadline, requests)
        before = link.interruptions
        try:
            while not requests.is_settled(ticket):
                link.inbox.raise_end()
                self._read(READ_PACKETS_MAX, deadline)
        finally:
            requests.abandon(ticket)
        return link.interruptions == before

    def _read(self, packets_max: int, deadline: _Deadline) -> None:
        """Return when something may have arrived."""
        if self._link.is_lost:
            self._reconnect(deadline)
        elif not self._link.read_nowait(packets_max):
            if self._link.is_mark_due:
                deadline.wait(self._closing, SEND_RETRY_SECONDS)
            else:
                self._wait(select.POLLIN, deadline)

    def _wait(self, events: int, deadline: _Deadline) -> None:
        poll = select.poll()
        poll.register(self._link.sock, events)
        if not poll.poll(deadline.left_ms()):
            deadline.expire()

    def _find_reason(self, deadline: _Deadline) -> None:
        """The bus accepts nothing more; the reason may be the next packet that arrives. Returns
        when the connection has been made again, or raises the reason."""
        link, inbox = self._link, self._link.inbox
        soon = _Deadline(REASON_SECONDS_MAX)
        with contextlib.suppress(TimeoutError):
            while not (inbox.ended or link.is_lost) and inbox.has_room:
                self._read(READ_PACKETS_MAX, soon)
        link.give_up()
        while link.is_lost:
            self._read(READ_PACKETS_MAX, deadline)

    def _reconnect(self, deadline: _Deadline) -> None:
        for wait in self._link.reconnect():
            if wait == "readable":
                self._wait(select.POLLIN, deadline)
            else:
                deadline.wait(self._closing, wait)
