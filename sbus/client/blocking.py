"""The client library for programs without an event loop.

Every call that can wait takes `timeout_seconds` and raises TimeoutError when that has passed; None
waits for ever. A call that timed out has not sent or taken anything, except that a request may have
been sent: its reply is ignored. A connection is for one thread at a time, but any thread may close
it.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from sbus.client import connection
from sbus.client.blocking_link import NOTHING_CAME, Block, BlockingLink
from sbus.client.blocking_streams import (
    MemberWatch,
    Receiving,
    RequestStream,
    Subscription,
    WorkerGroup,
)
from sbus.client.inbox import InboxStatistics
from sbus.client.link import Link
from sbus.client.message_queue import Item, Losses, Lost
from sbus.client.options import LinkOptions
from sbus.client.replies import REQUEST_SECONDS
from sbus.client.requests import Identity
from sbus.client.snapshot import JOIN_SECONDS
from sbus.client.value_store import BYTES_MAX, KEYS_MAX
from sbus.protocol.packets import Message
from sbus.protocol.presence import Member
from sbus.protocol.receipts import Receipt

if TYPE_CHECKING:
    from sbus.protocol.admin_results import MeResult


@overload
def connect(
    address: str | None = None,
    *,
    losses: Literal["raise", "log"] | None = None,
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
    losses: Losses | None = None,
    timeout_seconds: float | None = None,
    **options: Unpack[LinkOptions],
) -> "Connection[Any]":
    """Connect to the bus at `address`. The default is `$SBUS_ADDRESS`, else the user's own bus at
    `$XDG_RUNTIME_DIR/sbus.socket`, else `/run/sbus.socket`.

    A gap in the messages raises MessagesLost where it is, the default; with `losses="report"` it is
    an item, `Lost`; with "log", the default of `reconnect=True`, it is a warning of the logger
    `sbus`, and iteration goes on. For further options see `LinkOptions`. Use it in a `with` block,
    or `close` it.

    Returns when the bus has answered. Raises AddressError, ConfigurationError, and Disconnected
    when the bus refuses the connection.
    """
    io = BlockingLink[Any](Link(address, losses, options))
    bus = Connection[Any](io)
    try:
        io.run(io.open(), timeout_seconds)
    except BaseException:
        bus.close()
        raise
    return bus


class Connection(Receiving[Item]):
    """A connection to a bus, made by `connect`; iterating over it receives messages.

    It has the methods of `sbus.Connection`, which say more. Every one except `close` and
    `statistics` raises Disconnected when the bus has gone, with the reason if there was one, or
    waits for the next bus if it is to `reconnect`; ProtocolViolation when the peer is not a bus;
    and RuntimeError while another thread is in a call.
    """

    def __init__(self, io: BlockingLink[Item]) -> None:
        self._io: BlockingLink[Item] = io
        self._link = io.link
        self._bus = connection.Connection(io)

    # -- sending -------------------------------------------------------------------------------

    def subscribe(self, pattern: bytes | str, *, timeout_seconds: float | None = None) -> None:
        """Subscribe to `pattern`, once more than before: in force for every message that is
        published after a later `sync`."""
        self._io.run(self._bus.subscribe(pattern), timeout_seconds)

    def unsubscribe(self, pattern: bytes | str, *, timeout_seconds: float | None = None) -> None:
        """Undo one `subscribe` with the same pattern."""
        self._io.run(self._bus.unsubscribe(pattern), timeout_seconds)

    def publish(
        self,
        key: bytes | str,
        payload: bytes | str = b"",
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Publish a message; waits while the bus holds this client back, and reads meanwhile.

        A refusal by the bus is raised by a later `sync`, `whoami` or `receive`. Raises InboxFull
        when it waits, and too many messages have arrived: receive them, then try again.
        """
        self._io.send_now(self._link.encoder.publish(key, payload), timeout_seconds)

    def publish_many(
        self,
        key: bytes | str,
        payloads: Iterable[bytes | str],
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Publish a message for each payload, in less time than one by one.

        Raises the same as `publish`; the payloads before that have been sent.
        """
        self._io.run(self._bus.publish_many(key, payloads), timeout_seconds)

    def publish_all(
        self,
        messages: Iterable[tuple[bytes | str, bytes | str]],
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Publish a message for each key and payload, likewise."""
        self._io.run(self._bus.publish_all(messages), timeout_seconds)

    def publish_with_receipt(
        self,
        key: bytes | str,
        payload: bytes | str = b"",
        *,
        timeout_seconds: float | None = None,
    ) -> Receipt:
        """Publish a message, and return what has become of it."""
        return self._io.run(self._bus.publish_with_receipt(key, payload), timeout_seconds)

    def control(
        self,
        key: bytes | str,
        payload: bytes | str | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Send a control message."""
        self._io.run(self._bus.control(key, payload), timeout_seconds)

    # -- asking --------------------------------------------------------------------------------

    def sync(self, *, timeout_seconds: float | None = None) -> None:
        """Return when the bus has processed everything that was sent before."""
        self._io.run(self._bus.sync(), timeout_seconds)

    def whoami(self, *, timeout_seconds: float | None = None) -> Identity:
        """This client's peer credentials; includes a `sync`."""
        return self._io.run(self._bus.whoami(), timeout_seconds)

    def me(self, *, timeout_seconds: float | None = None) -> "MeResult":
        """What the bus knows about this client's user; includes a `sync`."""
        return self._io.run(self._bus.me(), timeout_seconds)

    # -- receiving -----------------------------------------------------------------------------

    def receive(self, *, timeout_seconds: float | None = None) -> Item:
        """The next message.

        Raises MessagesLost exactly where messages are missing (unless losses are reported), and
        PacketRefused for packets of this client; in both cases the next call continues.
        """
        return self._io.take_now(self._link.inbox.own, timeout_seconds)

    def receive_many(
        self, limit: int = 1024, *, timeout_seconds: float | None = None
    ) -> list[Item]:
        """Up to `limit` (at least 1) messages; waits until there is one.

        Raises the same as `receive`; a loss after other messages is raised by the next call.
        """
        taking = self._io.take_many(self._link.inbox.own, limit)
        return self._io.run(taking, timeout_seconds, NOTHING_CAME)

    def subscription(
        self, pattern: bytes | str, *more: bytes | str, timeout_seconds: float | None = None
    ) -> AbstractContextManager[Subscription[Item]]:
        """`with bus.subscription("a/*", "b/") as messages`: a stream of its own of the messages
        that match one of these patterns."""
        opened = self._bus.subscription(pattern, *more)
        return Block(self._io, opened, Subscription, timeout_seconds)

    # -- names ---------------------------------------------------------------------------------

    def join(
        self,
        name: bytes | str,
        *,
        will: tuple[bytes | str, bytes | str] | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Take a name, by which others see this client. When it goes without `leave`, the bus
        publishes the `will`, a key and a payload."""
        self._io.run(self._bus.join(name, will=will), timeout_seconds)

    def leave(self, *, timeout_seconds: float | None = None) -> None:
        """Give the name up, if this client has one. Its will is not published."""
        self._io.run(self._bus.leave(), timeout_seconds)

    def members(
        self, pattern: bytes | str = "*/*", *, timeout_seconds: float | None = None
    ) -> list[Member]:
        """Who has a name that matches `UID/NAME-PATTERN`; includes a `sync`."""
        return self._io.run(self._bus.members(pattern), timeout_seconds)

    def watch_members(
        self, pattern: bytes | str = "*/*", *, timeout_seconds: float | None = None
    ) -> AbstractContextManager[MemberWatch]:
        """`with bus.watch_members("*/worker-*") as watch`: `watch.members()` are those who are
        there, and iterating over it receives each change."""
        return Block(self._io, self._bus.watch_members(pattern), MemberWatch, timeout_seconds)

    # -- requests and answers ------------------------------------------------------------------

    def request(
        self,
        key: bytes | str,
        payload: bytes | str = b"",
        *,
        timeout_seconds: float | None = REQUEST_SECONDS,
    ) -> bytes:
        """Publish a request, and return the payload of the first answer."""
        return self._io.run(self._bus.request(key, payload, timeout_seconds=timeout_seconds))

    def requests(
        self, pattern: bytes | str, *more: bytes | str, timeout_seconds: float | None = None
    ) -> AbstractContextManager[RequestStream]:
        """`with bus.requests("sums/*") as requests`: a stream of the requests whose keys match one
        of these patterns."""
        opened = self._bus.requests(pattern, *more)
        return Block(self._io, opened, RequestStream, timeout_seconds)

    # -- worker groups -------------------------------------------------------------------------

    def worker_group(
        self,
        name: bytes | str,
        pattern: bytes | str,
        *more: bytes | str,
        timeout_seconds: float | None = None,
    ) -> AbstractContextManager[WorkerGroup]:
        """`with bus.worker_group("resizers", "jobs/*") as jobs`: be one of the clients among which
        the messages that match a pattern are shared; the timeout is for joining."""
        opened = self._bus.worker_group(name, pattern, *more)
        return Block(self._io, opened, WorkerGroup, timeout_seconds)

    # -- last values ---------------------------------------------------------------------------

    def last_values(
        self,
        pattern: bytes | str,
        *,
        uid: int | None = None,
        timeout_seconds: float | None = JOIN_SECONDS,
    ) -> AbstractContextManager[Subscription[Item]]:
        """`with bus.last_values("lamps/") as messages`: the newest message of each key that
        matches, and then all that follow."""
        opened = self._bus.last_values(pattern, uid=uid, timeout_seconds=timeout_seconds)
        return Block(self._io, opened, Subscription)

    def serve_last_values(
        self,
        pattern: bytes | str,
        *more: bytes | str,
        keys_max: int = KEYS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        """Keep the newest message of each key that matches one of these patterns, from now on, for
        clients that ask with `last_values`. Does not return."""
        service = self._bus.serve_last_values(
            pattern, *more, keys_max=keys_max, bytes_max=bytes_max
        )
        self._io.run(service)

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
        self._io.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
