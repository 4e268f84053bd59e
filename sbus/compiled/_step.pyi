from collections.abc import Mapping, Sequence
from typing import Protocol

from sbus.compiled.records import LogRecord as LogRecord
from sbus.compiled.records import OriginRecord as OriginRecord
from sbus.compiled.records import OutboxRecord as OutboxRecord
from sbus.compiled.records import RouteRecord as RouteRecord
from sbus.compiled.records import SessionRecord as SessionRecord
from sbus.compiled.records import TableRecord as TableRecord

SOURCES: str
LAYOUT: dict[str, int]

class HasFileno(Protocol):
    def fileno(self) -> int: ...

class OrdinaryStep:
    def __init__(
        self,
        *,
        lock_fd: int,
        words: memoryview,
        block_words: int,
        workers: int,
        worker: int,
        eventfds: tuple[int, ...],
        accounts: memoryview,
        account_words: int,
        share_at: int,
        drops_at: int,
        stalls: memoryview,
        log_bytes: memoryview,
        counts: object,
        shared_counts: memoryview,
        served: memoryview,
        slots: memoryview,
        timed_until_ns: object,
        fan_out: object,
        in_flight: memoryview,
        latency_at: int,
        recent: Mapping[bytes, RouteRecord],
        log: LogRecord,
        table: TableRecord,
        origin: OriginRecord,
    ) -> None: ...
    def serve(self, session: SessionRecord, cost: int, cost_max: int) -> int: ...
    def poll(
        self,
        poller: HasFileno,
        sessions: Mapping[int, SessionRecord],
        seconds_max: float,
        cost_max: int,
    ) -> list[tuple[int, int]]: ...
    def deliver(
        self, messages: Sequence[tuple[bytes, bytes, RouteRecord]], received_us: int
    ) -> int: ...
    def walk(
        self, end: int, costs: dict[int, int], walked_bytes: dict[int, int], cost_max: int
    ) -> int: ...
    def walk_piece(
        self, piece: bytes, start: int, costs: dict[int, int], walked_bytes: dict[int, int]
    ) -> int: ...
