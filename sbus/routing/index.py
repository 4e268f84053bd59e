"""The pattern index: the members whose patterns match a key.

A pattern without wildcards matches one key; all of these are in a dict and cost one lookup. The
others are in a trie by segment, where only patterns that match the beginning of the key cost
anything.

A reserved key is matched only by patterns whose first segment is literally `!`.

An index holds two kinds of members: workers, by number, of which a path has each once, and any
others, with counts. Most paths of a large bus have no other members than workers, or one other
that subscribed once, so an index keeps no dict for these.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, TypeAlias, TypeVar

import msgspec

from sbus.protocol.keys import RESERVED_SEGMENT, Dialect, PatternPath, is_reserved
from sbus.routing.path_trie import PathTrie

S = TypeVar("S", bound=Hashable)


class IndexStatistics(msgspec.Struct, frozen=True):
    """Sizes of an index at one instant."""

    nodes: int
    """Nodes of the trie, including its root; a pattern without wildcards needs none, any other at
    most two."""
    patterns: int
    """Different paths that have members."""
    subscriptions: int
    """Additions that have not been removed yet."""


class _Sole(Generic[S]):
    """Members of a path: workers, and one other with one subscription."""

    __slots__ = ("member", "workers")

    def __init__(self, workers: int, member: S) -> None:
        self.workers = workers
        self.member = member

    def counts(self) -> dict[S, int]:
        return {self.member: 1}


class _Several(Generic[S]):
    """Members of a path: workers, and others with their counts."""

    __slots__ = ("_counts", "workers")

    def __init__(self, workers: int, counts: dict[S, int]) -> None:
        self.workers = workers
        self._counts = counts

    def counts(self) -> dict[S, int]:
        return self._counts


_Entry: TypeAlias = int | _Sole[S] | _Several[S]
"""The members of one path; a mask if they are workers alone."""


class PatternIndex(Generic[S]):
    """A multiset of (pattern, member) and a set of (pattern, worker), with lookup by key. A
    member is any hashable.

    Invariants: every entry has members, and one that is no mask has others than workers; counts
    are at least 1; no path in the trie is a literal; `_subscriptions` is the sum of all counts and
    of the number of workers of each path; `_paths_of_worker` counts the paths of each worker, and
    `_paths_of_size` those with more than one other member, by their number.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._separator = dialect.separator
        self._literals: dict[bytes, _Entry[S]] = {}
        self._trie: PathTrie[_Entry[S]] = PathTrie()
        self._subscriptions = 0
        self._paths_of_worker: Counter[int] = Counter()
        self._paths_of_size: Counter[int] = Counter()
        self.members_max = 1
        """The most members besides workers that a path has, if any has more than one."""
        self.match_steps_max = 0
        """The most nodes of the trie that a match has visited since a path was added there."""

    @property
    def subscriptions(self) -> int:
        """Additions that have not been removed yet."""
        return self._subscriptions

    def add(self, path: PatternPath, member: S) -> bool:
        """Add one subscription; True when it is the member's first one of this path."""
        entry = self._get(path)
        self._subscriptions += 1
        if isinstance(entry, int):
            self._put(path, _Sole(entry, member))
            return True
        if isinstance(entry, _Sole):
            entry = _Several(entry.workers, entry.counts())
            self._put(path, entry)
        counts = entry.counts()
        count = counts.get(member, 0)
        counts[member] = count + 1
        if not count:
            self._resize(len(counts) - 1, len(counts))
        return not count

    def remove(self, path: PatternPath, member: S) -> bool:
        """Remove one subscription; True when it was the member's last one of this path. Raises
        KeyError, without a change, when there is none."""
        entry = self._get(path)
        if isinstance(entry, int):
            raise KeyError(member)
        counts = entry.counts()
        counts[member] -= 1
        was_last = not counts[member]
        if was_last:
            del counts[member]
            self._resize(len(counts) + 1, len(counts))
        if not counts:
            self._put(path, entry.workers)
        self._subscriptions -= 1
        return was_last

    def add_worker(self, path: PatternPath, worker: int) -> bool:
        """Add a worker to the members of a path; False when it is one already."""
        entry = self._get(path)
        workers = _workers_of(entry)
        if workers >> worker & 1:
            return False
        self._set_workers(path, entry, workers | 1 << worker)
        self._subscriptions += 1
        self._paths_of_worker[worker] += 1
        return True

    def remove_worker(self, path: PatternPath, worker: int) -> bool:
        """Remove a worker from the members of a path; False when it is none of them."""
        entry = self._get(path)
        workers = _workers_of(entry)
        if not workers >> worker & 1:
            return False
        self._set_workers(path, entry, workers & ~(1 << worker))
        self._subscriptions -= 1
        self._paths_of_worker[worker] -= 1
        return True

    def remove_worker_everywhere(self, worker: int) -> bool:
        """Remove a worker from the members of all paths; False when it is one of none, which costs
        nothing."""
        if not self._paths_of_worker[worker]:
            return False
        paths = [path for path, entry in self._items() if _workers_of(entry) >> worker & 1]
        for path in paths:
            self.remove_worker(path, worker)
        return True

    def match(self, key: bytes) -> set[S]:
        """The members, without workers, of all patterns that match `key`; the caller owns the
        set."""
        return self.match_all(key)[1]

    def match_all(self, key: bytes) -> tuple[int, set[S]]:
        """The workers, as a mask, and the other members of all patterns that match `key`; the
        caller owns the set."""
        reserved = RESERVED_SEGMENT in key and is_reserved(key, self._dialect)
        segments = key.split(self._separator)
        workers, members = 0, set[S]()
        if reserved and segments[0] != RESERVED_SEGMENT:
            return workers, members
        literal = self._literals.get(key)
        found = [] if literal is None else [literal]
        steps = self._trie.collect(segments, found, reserved)
        if steps > self.match_steps_max:
            self.match_steps_max = steps
        for entry in found:
            workers |= _workers_of(entry)
            if isinstance(entry, _Sole):
                members.add(entry.member)
            elif isinstance(entry, _Several):
                members.update(entry.counts())
        return workers, members

    def statistics(self) -> IndexStatistics:
        return IndexStatistics(
            nodes=self._trie.nodes,
            patterns=len(self._literals) + self._trie.paths,
            subscriptions=self._subscriptions,
        )

    def check_invariants(self) -> None:
        """Recount everything; AssertionError where the invariants do not hold."""
        self._trie.check_invariants()
        subscriptions = 0
        paths_of_worker = Counter[int]()
        paths_of_size = Counter[int]()
        for _, entry in self._items():
            workers = _workers_of(entry)
            paths_of_worker.update(it for it in range(workers.bit_length()) if workers >> it & 1)
            subscriptions += workers.bit_count()
            if isinstance(entry, int):
                assert entry
                continue
            counts = entry.counts().values()
            assert counts
            assert all(count >= 1 for count in counts)
            subscriptions += sum(counts)
            if len(counts) > 1:
                paths_of_size[len(counts)] += 1
        assert subscriptions == self._subscriptions
        assert paths_of_worker == self._paths_of_worker
        assert paths_of_size == self._paths_of_size
        assert self.members_max == max(paths_of_size, default=1)
        assert not any(path.is_literal for path, _ in self._trie.items())

    def _get(self, path: PatternPath) -> _Entry[S]:
        """The entry of exactly this path; 0 when it has none."""
        if path.is_literal:
            return self._literals.get(self._separator.join(path.segments), 0)
        return self._trie.get(path) or 0

    def _set_workers(self, path: PatternPath, entry: _Entry[S], workers: int) -> None:
        if isinstance(entry, int):
            self._put(path, workers)
        else:
            entry.workers = workers

    def _put(self, path: PatternPath, entry: _Entry[S]) -> None:
        """Give exactly this path another entry, or none if it is 0."""
        if not path.is_literal:
            if entry:
                self._put_in_trie(path, entry)
            else:
                self._trie.remove(path)
            return
        text = self._separator.join(path.segments)
        if entry:
            self._literals[text] = entry
        else:
            del self._literals[text]
            self._literals = self._literals or {}  # an emptied dict keeps its size

    def _put_in_trie(self, path: PatternPath, entry: _Entry[S]) -> None:
        paths = self._trie.paths
        self._trie.put(path, entry)
        if self._trie.paths > paths:
            self.match_steps_max = 0

    def _resize(self, before: int, after: int) -> None:
        """Note that a path has so many members besides workers."""
        sizes = self._paths_of_size
        if after > 1:
            sizes[after] += 1
            self.members_max = max(self.members_max, after)
        if before > 1:
            sizes[before] -= 1
            if not sizes[before]:
                del sizes[before]
                if before == self.members_max:
                    self.members_max = max(sizes, default=1)

    def _items(self) -> Iterator[tuple[PatternPath, _Entry[S]]]:
        """All paths with their entries, in no particular order."""
        for text, entry in self._literals.items():
            segments = tuple(text.split(self._separator))
            yield PatternPath(segments, (False,) * len(segments), subtree=False), entry
        yield from self._trie.items()


def _workers_of(entry: _Entry[S]) -> int:
    return entry if isinstance(entry, int) else entry.workers
