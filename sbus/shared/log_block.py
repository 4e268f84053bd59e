"""Log blocks: how messages are laid out in the ordered log.

    log block    destination mask, length, number of log entries, the publisher's client number and
                 uid, time of receipt, place of the batch, the publisher's gid and pid, the
                 entry of its receipt or 0 (`receipt_table`), the place of the publisher's account,
                 log entries
    log entry    destination mask, length of the packet, length of its key, number of the message in
                 its batch, packet

The mask of a log block is the union of the masks of its entries: one bit for each worker. The place
of a message in the total order is that of its batch plus its number there.
"""

import mmap
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from sbus.errors import ConfigurationError
from sbus.limits import Limits
from sbus.shared.shared_memory import LAST_PLACE, PAGE_BYTES

BLOCK = struct.Struct("<QIIQIIQIIQI4x")
"""Mask, length, count, client, uid, time, place, gid, pid, receipt, account: 64 bytes."""
PLACE_AT: Final = 32
"""Of the place in the header: it is known last."""
PLACE = struct.Struct("<Q")
_ENTRY = struct.Struct("<QIHH")  # mask, packet length, key length, number
ENTRY_BYTES = _ENTRY.size
"""What a log entry takes besides its packet."""
HAND_OVER: Final = b"\0hand-over"
"""The key of a log entry that hands a client over. No client can name it, because of its NUL."""
TIME_MASK = 0xFFFFFFFF
"""The time of receipt keeps 32 bits, in microseconds: more than an hour."""
BLOCK_ALIGN_BYTES = 64
"""Log blocks begin at multiples of this, so that a header fits before the end of the ring."""


class Publisher(NamedTuple):
    """A client, as the log has it."""

    client: int
    uid: int
    """Like the two below, the peer's own, as `whoami` tells them."""
    gid: int
    pid: int
    account_place: int
    """Of its user's account, which is charged for what it publishes."""


class WalkedBlock(NamedTuple):
    """What a worker that walks finds."""

    publisher: Publisher
    received_us: int
    """& TIME_MASK."""
    place: int
    """Of the batch."""
    receipt: int
    """The workers that walk over it are to say what comes of its only message; 0: not."""
    entries: list[tuple[bytes, bytes, int]]
    """Key, packet and number of each entry destined to that worker."""


class LogBlock(msgspec.Struct, frozen=True):
    """Messages of one publisher, laid out for the log; `mask` is the union of theirs, `count` their
    number."""

    mask: int
    count: int
    data: bytes


class LogStatistics(msgspec.Struct, frozen=True):
    """How full the log is; `waiting` is a mask of workers."""

    head: int
    used_bytes: int
    size_bytes: int
    waiting: int


def build_log_block(
    publisher: Publisher,
    received_us: int,
    entries: Sequence[tuple[int, bytes, int, int]],
    receipt: int = 0,
) -> LogBlock:
    """Lay out the (destination mask, packet, key length, number) entries of one client, received at
    this time of `time.monotonic_ns`; each has a destination."""
    union = 0
    parts: list[bytes] = [b""]
    length = BLOCK.size
    pack = _ENTRY.pack
    for mask, packet, key_bytes, number in entries:
        union |= mask
        parts.append(pack(mask, len(packet), key_bytes, number))
        parts.append(packet)
        length += _ENTRY.size + len(packet)
    padding = -length % BLOCK_ALIGN_BYTES
    client, uid, gid, pid, account = publisher
    time_us = received_us & TIME_MASK
    block = (union, length + padding, len(entries), client, uid, time_us)
    parts[0] = BLOCK.pack(*block, 0, gid, pid, receipt, account)
    parts.append(bytes(padding))
    return LogBlock(union, len(entries), b"".join(parts))


def _check_length(length: int, count: int) -> None:
    """Raise RuntimeError where something else than a log block of so many entries was read, so that
    every loop over log blocks ends."""
    if length < BLOCK.size + count * ENTRY_BYTES:
        raise RuntimeError(f"the log has a block of {length} bytes with {count} entries")


def block_at(source: mmap.mmap | bytes, at: int, bit: int) -> tuple[int, int, WalkedBlock | None]:
    """The length of the log block here, how many entries it has, and the block, if it concerns the
    worker with this bit."""
    header = BLOCK.unpack_from(source, at)
    mask, length, count, client, uid, time_us, place, gid, pid, receipt, account = header
    _check_length(length, count)
    if not mask & bit:
        return length, count, None
    entries = _entries_of(source, at + BLOCK.size, count, bit)
    publisher = Publisher(client, uid, gid, pid, account)
    return length, count, WalkedBlock(publisher, time_us, place, receipt, entries)


def _entries_of(
    source: mmap.mmap | bytes, at: int, count: int, bit: int
) -> list[tuple[bytes, bytes, int]]:
    entries = []
    unpack_entry = _ENTRY.unpack_from
    for _ in range(count):
        mask, packet_bytes, key_bytes, number = unpack_entry(source, at)
        at += _ENTRY.size
        if mask & bit:
            packet = source[at : at + packet_bytes]
            entries.append((packet[4 : 4 + key_bytes], packet, number))
        at += packet_bytes
    return entries


def walk_piece(piece: bytes, bit: int) -> Iterator[tuple[int, WalkedBlock]]:
    """The log blocks of a piece of the log that concern the worker with this bit, and their places
    in the piece."""
    at = 0
    while at < len(piece):
        length, _, block = block_at(piece, at, bit)
        if block is not None:
            yield at, block
        at += length


def entry_numbers(source: mmap.mmap, at: int, bit: int) -> list[int]:
    """Which entries of the log block here, from 0, are destined to the worker with this bit."""
    _, _, count, *_ = BLOCK.unpack_from(source, at)
    at += BLOCK.size
    numbers = []
    for number in range(count):
        mask, packet_bytes, *_ = _ENTRY.unpack_from(source, at)
        at += _ENTRY.size + packet_bytes
        if mask & bit:
            numbers.append(number)
    return numbers


def blocks_between(
    ring: memoryview, start: int, end: int, bit: int
) -> Iterator[tuple[int, int, bytes]]:
    """Of each log block between two positions that concerns the worker with this bit: how many log
    entries it has, its publisher, and the key of its first entry."""
    while start < end:
        at = start % len(ring)
        mask, length, count, client, *_ = BLOCK.unpack_from(ring, at)
        _check_length(length, count)
        if mask & bit:
            _, _, key_bytes, _ = _ENTRY.unpack_from(ring, at + BLOCK.size)
            key_at = at + BLOCK.size + _ENTRY.size + len(b"MSG ")
            yield count, client, bytes(ring[key_at : key_at + key_bytes])
        start += length


def take_places(words: memoryview, now_ns: int, messages: int) -> int:
    """Give so many messages their places in the total order; returns the first. Under the lock."""
    first: int = max(now_ns, words[LAST_PLACE] + 1)
    words[LAST_PLACE] = first + messages - 1
    return first


def check_log_size(limits: Limits) -> None:
    """Raise ConfigurationError unless the largest log block and a skip fit in a quarter of it."""
    packets = limits.batch_packets_max
    largest = limits.batch_bytes_max + limits.packet_bytes_max + 32 * (packets + 4)
    if limits.log_bytes % PAGE_BYTES or limits.log_bytes < 8 * largest:
        least = (8 * largest + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        raise ConfigurationError(
            f"log_bytes={limits.log_bytes}: must be a multiple of {PAGE_BYTES} and, for these "
            f"packet and batch sizes, at least {least}"
        )
