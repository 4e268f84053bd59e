"""Batches of rows, ready to be written to a segment file; and the identity of a recorder."""

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sbus.pipeline.store.schemas import GAP, MESSAGE, SEGMENT_SCHEMAS, TIMESTAMP, conform
from sbus.unix.address import parse_address
from sbus.unix.machine_id import machine_id

_DIGEST_DIGITS = 12
"""Enough for hundreds of thousands of hosts of one name; it does not disclose the machine's id."""

Losses = Mapping[int, int | None]
"""The places of gaps in a batch, with the number of missing messages; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class RecorderIdentity:
    """Which bus of which host is recorded. `recorder` is a name made of both and of the machine's
    id, because hosts may have the same name."""

    recorder: str
    host: str
    bus: str

    @classmethod
    def here(cls, address: str) -> Self:
        """Of the bus of this host with this address."""
        bus = os.path.abspath(parse_address(address).format())
        return cls.of(socket.gethostname(), bus, machine_id())

    @classmethod
    def of(cls, host: str, bus: str, machine: str = "") -> Self:
        whole = f"{machine}\0{host}\0{bus}".encode(errors="surrogateescape")
        digest = hashlib.sha256(whole).hexdigest()[:_DIGEST_DIGITS]
        name = re.sub(r"[^a-z0-9.-]", "-", host.lower()).strip(".-") or "host"
        return cls(f"{name}-{digest}", host, bus)


def row_batch(
    table: str,
    first_offset: int,
    stamps_us: "np.ndarray[Any, np.dtype[np.int64]]",
    columns: Mapping[str, pa.Array],
) -> pa.RecordBatch:
    """Rows with the offsets from `first_offset` on; the other columns of the table are null."""
    known = {
        "offset": pa.array(np.arange(first_offset, first_offset + len(stamps_us))),
        "timestamp": pa.array(stamps_us, TIMESTAMP),
        **columns,
    }
    return conform(pa.RecordBatch.from_pydict(known), SEGMENT_SCHEMAS[table])


def message_batch(
    first_offset: int,
    stamps_us: "np.ndarray[Any, np.dtype[np.int64]]",
    columns: Mapping[str, pa.Array],
    losses: Losses,
) -> pa.RecordBatch:
    """Rows of the table `messages`, with `key` and `value`; gaps at the places of `losses`."""
    count = len(stamps_us)
    if losses:
        kinds = pa.array([GAP if at in losses else MESSAGE for at in range(count)])
        lost = pa.array([losses.get(at) for at in range(count)], pa.int64())
    else:
        kinds, lost = pa.repeat(MESSAGE, count), pa.nulls(count, pa.int64())
    sizes = pc.binary_length(columns["value"])
    all_columns = {**columns, "payload_bytes": sizes, "kind": kinds, "lost": lost}
    return row_batch("messages", first_offset, stamps_us, all_columns)
