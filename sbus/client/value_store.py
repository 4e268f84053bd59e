"""The newest message of each key: what a service of last values keeps and answers.

It does no input or output. The formats are in `sbus.protocol.last_values`.
"""

import os
from collections.abc import Iterable

from sbus.client.message_queue import Lost
from sbus.protocol.keys import Dialect, parse_pattern
from sbus.protocol.last_values import PREFIX, encode_snapshot
from sbus.protocol.packets import Message
from sbus.protocol.pattern_matching import compile_patterns, covers
from sbus.protocol.request_reply import Envelope, encode_answer, parse_request

KEYS_MAX = 65_536
BYTES_MAX = 8 * 1024 * 1024
"""Of keys and payloads; the backlog of a joiner has room for a snapshot of this size."""
ID_BYTES = 8


class ValueStore:
    """The newest message of each key that matches one of some patterns.

    Beyond `keys_max` keys or `bytes_max` bytes, the value that has not changed for the longest time
    is forgotten, and counts as missing.
    """

    def __init__(
        self, patterns: Iterable[bytes], dialect: Dialect, *, keys_max: int, bytes_max: int
    ) -> None:
        self._patterns = list(patterns)
        self._dialect = dialect
        self._keys_max = keys_max
        self._bytes_max = bytes_max
        self._service = os.urandom(ID_BYTES).hex().encode()
        self._values: dict[bytes, bytes] = {}
        """The one that changed last is the last."""
        self._bytes = 0
        self._missing: int | None = 0

    def feed(self, item: Message | Lost) -> list[tuple[bytes, bytes]]:
        """Take in what the service receives next; returns keys and payloads to publish."""
        if isinstance(item, Lost):
            self._add_missing(item.count)
            return []
        if item.key.startswith(PREFIX):
            request = parse_request(item)
            return [] if request is None else self._answers(request)
        self._keep(item)
        return []

    def _keep(self, message: Message) -> None:
        self._forget(message.key)
        self._values[message.key] = message.payload
        self._bytes += len(message.key) + len(message.payload)
        while len(self._values) > self._keys_max or self._bytes > self._bytes_max:
            self._forget(next(iter(self._values)))
            self._add_missing(1)

    def _add_missing(self, count: int | None) -> None:
        is_known = self._missing is not None and count is not None
        self._missing = (self._missing or 0) + (count or 0) if is_known else None

    def _forget(self, key: bytes) -> None:
        payload = self._values.pop(key, None)
        if payload is not None:
            self._bytes -= len(key) + len(payload)

    def _answers(self, request: Envelope) -> list[tuple[bytes, bytes]]:
        wanted = parse_pattern(request.key.removeprefix(PREFIX), self._dialect)
        kept = [parse_pattern(pattern, self._dialect) for pattern in self._patterns]
        if wanted is None or not any(path is not None and covers(path, wanted) for path in kept):
            text = b"this service does not keep everything that this pattern matches"
            return [(request.reply_key, encode_answer(request, text, is_failure=True))]
        matches = compile_patterns([request.key.removeprefix(PREFIX)], self._dialect)
        values = (item for item in self._values.items() if matches(item[0]))
        return [
            (request.reply_key, encode_answer(request, part))
            for part in encode_snapshot(values, self._service, self._missing)
        ]

    def check_invariants(self) -> None:
        """bytes == Σ bytes of keys and values, within the bounds."""
        total = sum(len(key) + len(payload) for key, payload in self._values.items())
        assert self._bytes == total <= self._bytes_max
        assert len(self._values) <= self._keys_max
