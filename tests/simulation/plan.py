"""What a seed decides before a simulation begins: the size of the bus and its limits."""

import random
from typing import NamedTuple

from sbus.limits import Limits
from sbus.protocol.controls import FloodControl, Hard
from sbus.shared.log_block import check_log_size
from sbus.shared.shared_memory import PAGE_BYTES

SMALL_BUFFER_BYTES = 4608
"""Some messages fill a socket with this buffer."""
USERS = (1000, 1001)
_SUBORDINATE = 100_000
UIDS = (*USERS, USERS[1] + _SUBORDINATE)
"""Of clients; the last is a subordinate id of a user."""
_PACKET_BYTES_MAX = 512


def user_of(uid: int) -> int:
    """The user that this id counts as."""
    return uid % _SUBORDINATE


class Plan(NamedTuple):
    """Of one simulation."""

    workers: int
    clients: int
    steps: int
    deaths_max: int
    interruptions: float
    """In how many of the ticks."""
    records_per_piece: int
    """Of the subscription table, that are read or written before others have their turns."""
    limits: Limits
    flood_control: FloodControl
    """Of clients that choose nothing."""


def log_bytes_min(batch_packets: int) -> int:
    """Of the smallest log for batches of so many packets, in whole pages."""
    needed = 8 * (2 * _PACKET_BYTES_MAX + 32 * (batch_packets + 2))
    return -(-needed // PAGE_BYTES) * PAGE_BYTES


def make_plan(chance: random.Random) -> Plan:
    """Small limits, so that the log goes round, backlogs are full, and caches forget."""
    batch_packets = chance.choice((2, 8, 64))
    limits = Limits(
        packet_bytes_max=_PACKET_BYTES_MAX,
        key_bytes_max=256,
        pattern_bytes_max=256,
        batch_packets_max=batch_packets,
        batch_bytes_max=_PACKET_BYTES_MAX,
        quantum_units=chance.choice((8, 64)),
        log_bytes=log_bytes_min(batch_packets) * chance.choice((1, 1, 4)),
        table_bytes=32768,
        route_cache_bytes_max=chance.choice((0, 4096, 65536)),
        socket_buffer_bytes=SMALL_BUFFER_BYTES,
        backlog_messages_max=chance.choice((4, 30, 1000)),
        blocking_clients_max=8,
        users_max=4,
        user_held_seconds_max=1e6,
        user_connections_max=64,
    )
    check_log_size(limits)
    hard = Hard.BLOCK if limits.backlog_messages_max == 30 else Hard.DISCARD
    return Plan(
        workers=chance.choice((2, 2, 3)),
        clients=chance.randint(3, 7),
        steps=chance.choice((150, 300, 600)),
        deaths_max=chance.choice((0, 1, 1, 2, 4)),
        interruptions=chance.choice((0, 0.1, 0.3)),
        records_per_piece=chance.choice((2, 5, 1000)),
        limits=limits,
        flood_control=FloodControl(hard=hard),
    )
