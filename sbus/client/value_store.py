"""The newest message of each key, which a service of last values keeps and answers with.

It does no input or output. The formats are in `sbus.protocol.last_values`.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from sbus.client.message_queue import Lost
from sbus.client.missing_values import MissingValues
from sbus.protocol.keys import Dialect, parse_pattern
from sbus.protocol.last_values import ASK_AGAIN, PREFIX, encode_snapshot, fits_part
from sbus.protocol.packets import Message
from sbus.protocol.pattern_matching import compile_patterns, covers
from sbus.protocol.request_reply import Envelope, encode_answer, parse_request

KEYS_MAX = 65_536
BYTES_MAX = 8 * 1024 * 1024
"""Of keys and payloads; the backlog of a joiner has room for a snapshot of this size."""
CLIENT_REQUESTS_MAX = 4
"""Requests of one client that are answered at a time."""
ID_BYTES = 8


class ValueStore:
    """The newest message of each key that matches one of some patterns.

    Beyond `keys_max` keys or `bytes_max` bytes, the value that has not changed for the longest time
    is forgotten, and is missing. So is one that is too long to be handed on.
    """

    def __init__(
        self,
        patterns: Iterable[bytes],
        dialect: Dialect,
        *,
        keys_max: int,
        bytes_max: int,
        packet_bytes_max: int,
    ) -> None:
        self._patterns = list(patterns)
        self._dialect = dialect
        self._keys_max = keys_max
        self._bytes_max = bytes_max
        self._packet_bytes_max = packet_bytes_max
        self._values: dict[bytes, tuple[int, bytes]] = {}
        """Each with its place among all; the one that changed last is the last."""
        self._places = count(1)
        self._bytes = 0
        self._missing = MissingValues()

    def feed(self, item: Message | Lost) -> None:
        """Take in what the service receives next and is no request."""
        if isinstance(item, Lost):
            self._missing.add_gap(next(self._places), item.count)
        elif not item.key.startswith(PREFIX):
            self._keep(item)

    def _keep(self, message: Message) -> None:
        self._forget(message.key)
        place = next(self._places)
        self._missing.replaced(message.key)
        self._values[message.key] = (place, message.payload)
        self._bytes += len(message.key) + len(message.payload)
        if not fits_part(message.key, message.payload, self._packet_bytes_max):
            self._miss(message.key, place)
        while len(self._values) > self._keys_max or self._bytes > self._bytes_max:
            self._miss(next(iter(self._values)), place)
        if self._values:
            self._missing.forget_gaps_before(self._oldest_place())

    def _oldest_place(self) -> int:
        return next(iter(self._values.values()))[0]

    def _miss(self, key: bytes, place: int) -> None:
        self._forget(key)
        self._missing.add_key(key, place)

    def _forget(self, key: bytes) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._bytes -= len(key) + len(value[1])

    def answers(self, request: Envelope) -> Iterator[tuple[bytes, bytes]]:
        """The keys and payloads to publish for a request; of what is kept now."""
        pattern = request.key.removeprefix(PREFIX)
        wanted = parse_pattern(pattern, self._dialect)
        kept = [parse_pattern(pattern, self._dialect) for pattern in self._patterns]
        if wanted is None or not any(path is not None and covers(path, wanted) for path in kept):
            text = b"this service does not keep everything that this pattern matches"
            return iter([(request.reply_key, encode_answer(request, text, is_failure=True))])
        matches = compile_patterns([pattern], self._dialect)
        found = [(key, value) for key, value in self._values.items() if matches(key)]
        missing = self._missing.among(matches, found[0][1][0] if found else None)
        values = ((key, payload) for key, (_, payload) in found)
        snapshot = os.urandom(ID_BYTES).hex().encode()
        return (
            (request.reply_key, encode_answer(request, part))
            for part in encode_snapshot(values, snapshot, missing, self._packet_bytes_max)
        )

    def check_invariants(self) -> None:
        """bytes == Σ bytes of keys and values, within the bounds; the oldest comes first."""
        total = sum(len(key) + len(payload) for key, (_, payload) in self._values.items())
        assert self._bytes == total <= self._bytes_max
        assert len(self._values) <= self._keys_max
        places = [place for place, _ in self._values.values()]
        assert places == sorted(places)


class JoinerRequest(NamedTuple):
    """A request that waits at the service."""

    envelope: Envelope
    is_one_too_many: bool
    """Of its client."""

    def put_off(self) -> tuple[bytes, bytes]:
        """The key and payload to publish instead of an answer."""
        return self.envelope.reply_key, encode_answer(self.envelope, ASK_AGAIN, is_failure=True)


def requests_of(items: Sequence[Message | Lost]) -> dict[int, JoinerRequest]:
    """The requests among these by their indices; of one client, the newest count."""
    counts: Counter[int | None] = Counter()
    requests = {}
    for at, item in reversed(list(enumerate(items))):
        if isinstance(item, Message) and item.key.startswith(PREFIX):
            envelope = parse_request(item)
            if envelope is not None:
                client = item.sender.client if item.sender else None
                counts[client] += 1
                requests[at] = JoinerRequest(envelope, counts[client] > CLIENT_REQUESTS_MAX)
    return requests
