"""Sample replies of an admin socket, which tests may change: a small bus with a past.

All figures are different.
"""

from typing import Any

from sbus.limits import Limits
from sbus.protocol.admin_results import (
    Activity,
    ClientReport,
    Fill,
    Latency,
    LongestOperation,
    Rates,
    Recipient,
    StatsResult,
    SubscriptionReport,
    Traffic,
    UserReport,
    VersionResult,
    WorkerReport,
)

LATENCY = Latency(
    bounds_us=[50, 100, 1000, 2500, 1_000_000],
    counts=[600, 380, 15, 4, 0, 1],
    sum_us=2_345_000,
)
NO_LATENCY = Latency(bounds_us=[50, 1000], counts=[0, 0, 0], sum_us=0)


def traffic(**changes: Any) -> Traffic:
    figures: dict[str, Any] = {
        "messages_in": 12_345,
        "bytes_in": 4_718_592,
        "accepted": 61_725,
        "accepted_bytes": 23_592_960,
        "delivered": 61_000,
        "delivered_bytes": 23_000_000,
        "discarded": {"soft": 12, "hard": 700, "quota": 0, "unheld": 3},
        "discarded_bytes": 300_000,
        "replaced": 2,
        "replaced_bytes": 700,
        "undelivered": 4,
        "undelivered_bytes": 1_000,
        "backlog": 6,
        "backlog_bytes": 291_960,
        "refused": {"no-nul": 2, "reserved": 17},
        "stalls": 8,
        "slow_sends": 2,
        "subscriptions": 345,
        "route_lookups": 12_000,
        "route_misses": 1_500,
        "latency": LATENCY,
    }
    return Traffic(**{**figures, **changes})


def rates(**changes: Any) -> Rates:
    figures = {
        "window_seconds": 5.0,
        "messages_in_per_second": 1_234.5,
        "bytes_in_per_second": 471_859.2,
        "delivered_per_second": 12_345.0,
        "delivered_bytes_per_second": 4_718_592.0,
        "discarded_per_second": 0.4,
        "refused_per_second": 0.0,
    }
    return Rates(**{**figures, **changes})


def worker(number: int = 0, **changes: Any) -> WorkerReport:
    figures: dict[str, Any] = {
        "worker": number,
        "pid": 4_000 + number,
        "state": "serving",
        "started_at": 1_700_000_000.0,
        "deaths": 0,
        "silence_seconds": 0.3,
        "cpu_seconds": 754.0,
        "busy_share": 0.25,
        "memory_bytes": 52_428_800,
        "clients": 125,
        "traffic": traffic(),
        "rates": rates(),
    }
    return WorkerReport(**{**figures, **changes})


def stats(**changes: Any) -> StatsResult:
    figures: dict[str, Any] = {
        "address": "/run/sbus.socket",
        "step": "compiled",
        "started_at": 1_700_000_000.0,
        "uptime_seconds": 273_600.0,
        "draining": False,
        "clients": 1_000,
        "stored_clients": 980,
        "users": 20,
        "connections_accepted": 23_456,
        "connections_refused": {"not-admitted": 0, "too-many-connections": 5},
        "stalled_clients": 3,
        "log": Fill(used_bytes=3_355_443, size_bytes=8_388_608),
        "table": Fill(used_bytes=67_108_863, size_bytes=67_108_864),
        "traffic": traffic(),
        "rates": rates(),
        "workers": [worker(number) for number in range(2)],
        "longest_operations": [
            longest("0", "tick", 0.004, 0.003),
            longest("1", "tick", 20.0, 0.0021),
            longest("1", "hold", 0.000_045, 0.000_044),
            longest("front", "callback", 0.0125, 0.012),
        ],
    }
    return StatsResult(**{**figures, **changes})


def version(**changes: Any) -> VersionResult:
    figures: dict[str, Any] = {
        "version": "9.8.7",
        "protocol": 1,
        "python": "3.13",
        "step": "python",
        "address": "/run/sbus.socket",
        "dialect": "slash",
        "workers": 8,
        "pid": 77,
        "started_at": 99.5,
    }
    return VersionResult(**{**figures, **changes})


def longest(process: str, operation: str, seconds: float, cpu_seconds: float) -> LongestOperation:
    return LongestOperation(
        process=process, operation=operation, seconds=seconds, cpu_seconds=cpu_seconds
    )


def activity(**changes: Any) -> Activity:
    figures: dict[str, Any] = {
        "messages_in": 1_111,
        "bytes_in": 2_222_222,
        "accepted": 5_400,
        "delivered": 5_000,
        "delivered_bytes": 6_000_000,
        "discarded": 300,
        "backlog": 100,
        "backlog_bytes": 20_480,
        "socket_bytes": 61_440,
        "subscriptions": 7,
        "refused": 9,
        "soft": "queue",
        "hard": "discard",
        "order": "queue",
        "stalled": False,
        "waits_for": "",
    }
    return Activity(**{**figures, **changes})


def client(number: int = 1, **changes: Any) -> ClientReport:
    figures: dict[str, Any] = {
        "client": number,
        "uid": 0,
        "gid": 0,
        "pid": 30_000 + number,
        "program": "lampd",
        "worker": 0,
        "connected_at": 1_700_000_000.0,
        "activity": activity(),
    }
    return ClientReport(**{**figures, **changes})


def subscription(number: int = 1, **changes: Any) -> SubscriptionReport:
    figures: dict[str, Any] = {
        "pattern": "lamps/*/state",
        "count": 2,
        "client": number,
        "uid": 0,
        "pid": 30_000 + number,
        "program": "lampd",
        "worker": 0,
    }
    return SubscriptionReport(**{**figures, **changes})


def user(**changes: Any) -> UserReport:
    figures: dict[str, Any] = {
        "uid": 0,
        "connections": 12,
        "subscriptions": 345,
        "subscription_bytes": 65_536,
        "match_steps": 40,
        "backlog_bytes": 1_258_291,
        "socket_bytes": 360_448,
        "waiting_bytes": 2_048,
        "blocking_clients": 4,
        "held_seconds": 9.0,
        "discarded": 715,
        "limits": Limits().user,
    }
    return UserReport(**{**figures, **changes})


def recipient(number: int = 1, **changes: Any) -> Recipient:
    figures: dict[str, Any] = {
        "client": number,
        "uid": 0,
        "pid": 30_000 + number,
        "program": "lampd",
        "worker": 0,
        "patterns": ["lamps/*/state"],
        "backlog": 0,
        "stalled": False,
        "why_not": "",
        "text": "",
    }
    return Recipient(**{**figures, **changes})
