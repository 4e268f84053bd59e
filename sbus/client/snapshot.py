"""A joiner of last values, from its request to where it has the snapshot and what follows.

It does no input or output. The formats are in `sbus.protocol.last_values`.
"""

import os

from sbus.client.message_queue import Lost, MessageQueue, NotKept
from sbus.errors import ProtocolViolation, RequestFailed
from sbus.protocol.last_values import Part, parse_part, request_key
from sbus.protocol.packets import Message
from sbus.protocol.request_reply import encode_request, parse_answer, reply_key

JOIN_SECONDS = 10.0
"""How long a joiner waits for its snapshot, unless it says otherwise."""
ID_BYTES = 8


class Joining:
    """A joiner that waits for its snapshot.

    What it receives before its own request is in the snapshot; what it receives after that follows.
    """

    def __init__(self, pattern: bytes, own_key: bytes, *, messages_max: int) -> None:
        """`own_key` is the `!/cred/GID/UID/PID` of the client."""
        self.request_key = request_key(pattern)
        self.reply_key = reply_key(own_key, _new_id())
        self.is_complete = False
        self._messages_max = messages_max
        self._token = b""
        self._request = b""
        self._snapshot: list[Part] = []
        self._restart()

    def _restart(self) -> None:
        self.must_ask = True
        self._has_begun = False
        self._following: list[Message | Lost] = []
        self._parts: dict[bytes, list[Part]] = {}

    def request(self) -> bytes:
        """The payload to publish with `request_key`, because it `must_ask`."""
        self.must_ask = False
        self._token = _new_id()
        self._request = encode_request(self.reply_key, self._token, b"")
        return self._request

    def feed(self, item: Message | Lost) -> None:
        """Take in what the joiner receives next.

        Raises RequestFailed if the service does not keep this pattern, and ProtocolViolation.
        """
        if isinstance(item, Message) and item.key == self.reply_key:
            self._feed_answer(item.payload)
        elif isinstance(item, Message) and item.key == self.request_key:
            self._has_begun = self._has_begun or item.payload == self._request
        elif self.is_complete or (self._has_begun and isinstance(item, Message)):
            self._following.append(item)
            if not self.is_complete and len(self._following) > self._messages_max:
                self._restart()
        elif isinstance(item, Lost):
            self._restart()  # the request or a part of the snapshot may be missing

    def _feed_answer(self, payload: bytes) -> None:
        answer = parse_answer(payload)
        if answer.token != self._token or self.is_complete:
            return
        if answer.is_failure:
            raise RequestFailed(answer.payload.decode(errors="backslashreplace"))
        part = parse_part(answer.payload)
        parts = self._parts.setdefault(part.service, [])
        if part.number != len(parts) or not self._has_begun:
            raise ProtocolViolation("the parts of a snapshot came in the wrong order")
        parts.append(part)
        if part.is_last:
            self.is_complete = True
            self._snapshot = parts

    def move_to(self, queue: MessageQueue[Message | Lost]) -> None:
        """Put the snapshot, and what has followed so far, into this queue."""
        missing = self._snapshot[-1].missing
        if missing != 0:
            queue.add_gap(NotKept(missing))
        for part in self._snapshot:
            for key, payload in part.values:
                queue.add(Message(key, payload))
        for item in self._following:
            if isinstance(item, Message):
                queue.add(item)
            else:
                queue.add_gap(item)


def _new_id() -> bytes:
    return os.urandom(ID_BYTES).hex().encode()
