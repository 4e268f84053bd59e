"""Which rows of a batch a subscription takes.

Patterns are matched as the bus does it, on the bytes of the key. The same keys come again and
again, so each different one of a batch is looked at once, and what was found is remembered, up to a
bound. A gap is in every subscription: nobody knows what it was about.

Knows no files and not Spark.
"""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from sbus.pipeline.schemas import GAP
from sbus.protocol.keys import SLASH, parse_pattern
from sbus.protocol.secret_keys import widened
from sbus.protocol.text import from_text
from sbus.routing.index import PatternIndex

_REMEMBERED_KEYS_MAX = 100_000


class KeyFilter:
    """A set of patterns; an empty id in one for secret messages stands for anybody's."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._index: PatternIndex[None] = PatternIndex(SLASH)
        self._known: dict[str, bool] = {}
        for pattern in patterns:
            path = parse_pattern(widened(pattern), SLASH)
            if path is not None:
                self._index.add(path, None)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose key (column `key`, as text) matches, and the gaps (column `kind`)."""
        keys = batch["key"].dictionary_encode()
        matching = pa.array([self._matches(key) for key in keys.dictionary.to_pylist()], pa.bool_())
        taken = matching.take(keys.indices)
        return batch.filter(pc.or_(taken, pc.equal(batch["kind"], GAP)))

    def _matches(self, key: str) -> bool:
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _REMEMBERED_KEYS_MAX:
                self._known.clear()
            known = self._known[key] = bool(self._index.match(from_text(key)))
        return known
