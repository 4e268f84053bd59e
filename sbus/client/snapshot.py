"""A joiner of last values, from its request to the complete snapshot and the messages after it.

It does no input or output. The formats are in `sbus.protocol.last_values`.
"""

import os
from collections.abc import Callable, Collection

from sbus.client.message_queue import Lost, MessageQueue, NotKept
from sbus.errors import (
    BusError,
    ConnectionInterrupted,
    PacketRefused,
    ProtocolViolation,
    RequestFailed,
)
from sbus.protocol.codes import PACKETS_LOST
from sbus.protocol.last_values import ASK_AGAIN, Part, parse_part, request_key
from sbus.protocol.packets import Message, Sender
from sbus.protocol.receipts import Receipt
from sbus.protocol.request_reply import encode_request, parse_answer, reply_key

JOIN_SECONDS = 10.0
"""How long a joiner waits for its snapshot, unless it says otherwise."""
ID_BYTES = 8
PART_BYTES = 512
VALUE_BYTES = 128
"""What a part, and a value, takes in memory besides its bytes."""


class Joining:
    """A joiner that waits for its snapshot.

    What it receives before its own request is in the snapshot; what it receives after that follows.
    Anybody who receives the request may answer, and only the answers of some users are
    trusted. Nobody knows the name of another one's snapshot; the first complete one counts.
    """

    def __init__(
        self,
        pattern: bytes,
        own_key: bytes,
        *,
        uids: Collection[int],
        messages_max: int,
        bytes_max: int,
        may_wait: bool = True,
    ) -> None:
        """`own_key` is the `!/cred/GID/UID/PID` of the client, and `uids` the users who are
        trusted. All snapshots together, and what follows, have at most `bytes_max` bytes each.
        After a failure, the joiner `may_wait` for other answers."""
        self.request_key = request_key(pattern)
        self.reply_key = reply_key(own_key, _new_id())
        self.is_complete = False
        self._bytes_max = bytes_max
        self._may_wait = may_wait
        self._uids = uids
        self.failures: dict[int, RequestFailed] = {}
        """Of services that do not keep this pattern, or are not trusted, by client."""
        self._token = b""
        self._request = b""
        self._snapshot: list[Part] = []
        self._following = MessageQueue[Message | Lost](
            losses="report", messages_max=messages_max, bytes_max=bytes_max
        )
        self._restart()

    def _restart(self) -> None:
        self.must_ask = True
        self._has_begun = False
        self._following.clear()
        self._parts: dict[bytes, list[Part]] = {}
        self._bytes = 0
        self.failures.clear()
        self.has_receipt = False
        self._others: int | None = None if self._may_wait else 0
        """Clients that have received the request, as far as is known and matters."""

    def request(self) -> bytes:
        """The payload to publish with `request_key`, because it `must_ask`."""
        self.must_ask = False
        self._token = _new_id()
        self._request = encode_request(self.reply_key, self._token, b"")
        return self._request

    def feed(self, item: Message | Lost) -> None:
        """Take in what the joiner receives next. Raises RequestFailed if the answers are too long,
        or nobody is left who might answer."""
        if isinstance(item, Message) and item.key == self.reply_key:
            self._feed_answer(item.payload, item.sender)
        elif isinstance(item, Message) and item.key == self.request_key:
            self._has_begun = self._has_begun or item.payload == self._request
        elif self.is_complete or (self._has_begun and isinstance(item, Message)):
            self._follow(item)
        elif isinstance(item, Lost):
            self._restart()  # the request or a part of the snapshot may be missing

    def _follow(self, item: Message | Lost) -> None:
        if isinstance(item, Lost):
            self._following.add_gap(item)
        elif self.is_complete or self._following.has_room:
            self._following.add(item)
        else:
            self._restart()

    def feed_receipt(self, result: Receipt | BusError) -> None:
        """What has become of the request. Raises why it was not published, and RequestFailed if
        all who have received it do not keep this pattern."""
        self.has_receipt = True
        if isinstance(result, Receipt):
            if result.sent is not None and result.waiting is not None and self._may_wait:
                self._others = result.sent + result.waiting - 1  # without this client
            self._raise_failure()
        elif may_be_lost(result):
            self._restart()
        else:
            raise result

    def _raise_failure(self) -> None:
        others, failed = self._others, len(self.failures)
        if failed and others is not None and failed >= others and not self.is_complete:
            raise next(iter(self.failures.values()))

    def _feed_answer(self, payload: bytes, sender: Sender | None) -> None:
        answer = parse_answer(payload)
        if answer.token != self._token or self.is_complete or not self._has_begun:
            return
        if sender is None:
            raise RequestFailed("last values need senders, and this connection has sent sender/off")
        if sender.uid not in self._uids:
            users = " and ".join(map(str, sorted(self._uids)))
            text = f"user {sender.uid} has answered, and only services of {users} are trusted"
            self._add_failure(sender.client, text)
        elif answer.is_failure and answer.payload == ASK_AGAIN:
            self._restart()
        elif answer.is_failure:
            text = answer.payload.decode(errors="backslashreplace")
            self._add_failure(sender.client, text)
        else:
            self._feed_part(answer.payload)

    def _add_failure(self, client: int, text: str) -> None:
        if client not in self.failures:
            self._count(len(text) + PART_BYTES)
            self.failures[client] = RequestFailed(text)
            self._raise_failure()

    def _feed_part(self, payload: bytes) -> None:
        try:
            part = parse_part(payload)
        except ProtocolViolation:
            return
        parts = self._parts.setdefault(part.snapshot, [])
        self._count(len(payload) + PART_BYTES + VALUE_BYTES * len(part.values))
        if part.number != len(parts):
            return
        parts.append(part)
        if part.is_last:
            self.is_complete = True
            self._snapshot = parts

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes > self._bytes_max:
            raise RequestFailed(
                f"the answers take more than {self._bytes_max} bytes: connect with a larger "
                "inbox_bytes_max if a service keeps so much"
            )

    def move_to(
        self, queue: MessageQueue[Message | Lost], shown: Callable[[Message], Message]
    ) -> None:
        """Put the snapshot, and what has followed so far, as it is `shown`, into this queue."""
        missing = self._snapshot[-1].missing
        if missing != 0:
            queue.add_gap(NotKept(missing))
        for part in self._snapshot:
            for key, payload in part.values:
                queue.add(Message(key, payload))
        for item in self._following.take_many(len(self._following) or 1):
            if isinstance(item, Message):
                queue.add(shown(item))
            else:
                queue.add_gap(item)


def may_be_lost(error: BusError) -> bool:
    """Whether a message with this error may never have reached the bus."""
    is_lost = isinstance(error, PacketRefused) and error.code == PACKETS_LOST
    return is_lost or isinstance(error, ConnectionInterrupted)


def _new_id() -> bytes:
    return os.urandom(ID_BYTES).hex().encode()
