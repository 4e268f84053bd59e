"""Rows of any received messages."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sbus.client.message_joiner import MissedItems, MonitoredBatch
from sbus.client.message_queue import Lost
from sbus.pipeline.recorder.message_rows import GAP_PACKET, of_monitored, of_packets
from sbus.pipeline.store.schemas import SEGMENT_SCHEMAS
from sbus.protocol.admin_streams import Messages
from sbus.protocol.text import from_text

KEYS = st.binary(max_size=12).map(lambda key: key.replace(b"\0", b""))
NUMBERS = st.integers(0, 2**62)
LOST = st.none() | NUMBERS


@given(
    st.lists(st.tuples(KEYS, st.binary(max_size=20)) | LOST, min_size=1, max_size=20),
    st.integers(0, 2**40),
    st.data(),
)
def test_packets_and_losses_become_rows_in_order(
    items: list[tuple[bytes, bytes] | int | None], first: int, data: st.DataObject
) -> None:
    stamps_ns = data.draw(st.lists(NUMBERS, min_size=len(items), max_size=len(items)))
    packets = [b"MSG %b\0%b" % item if isinstance(item, tuple) else GAP_PACKET for item in items]
    losses = {at: item for at, item in enumerate(items) if not isinstance(item, tuple)}
    batch = of_packets(first, packets, stamps_ns, losses)
    batch.validate(full=True)
    assert batch.schema.equals(SEGMENT_SCHEMAS["messages"])
    stamps_us = [ns // 1000 for ns in stamps_ns]
    assert batch["offset"].to_pylist() == list(range(first, first + len(items)))
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == stamps_us
    shown = [batch[name].to_pylist() for name in ("kind", "key", "value", "lost")]
    for item, kind, key, value, lost in zip(items, *shown, strict=True):
        if isinstance(item, tuple):
            assert (kind, from_text(key), value, lost) == ("MSG", *item, None)
        else:
            assert (kind, key, value, lost) == ("GAP", "", b"", item)


def monitored(
    keys: list[str],
    sizes: list[int | None],
    recipients: list[int | None],
    *payloads: bytes,
    time: float = 1.5,
    program: str = "lampd",
) -> MonitoredBatch:
    packet = Messages(
        source=1,
        missed=0,
        worker=1,
        time=time,
        order=7,
        block=0,
        client=11,
        uid=12,
        gid=13,
        pid=14,
        program=program,
        keys=keys,
        sizes=sizes,
        recipients=[count or 0 for count in recipients],
        payloads=b"".join(payloads),
    )
    batch = MonitoredBatch(packet, 0.0)
    batch.recipients, batch.payloads = recipients, [*payloads]
    return batch


def test_monitored_messages_become_rows_with_their_publishers() -> None:
    batches: list[MonitoredBatch | MissedItems | Lost] = [
        monitored(["k", "é"], [1, 3], [3, 0], b"va", b"bc"),
        Lost(9),
        monitored(["!/cred///"], [None], [None], time=2.0, program=""),
        Lost(None),
    ]
    batch = of_monitored(5, batches, 3_000_000)
    batch.validate(full=True)
    columns = ("key", "value", "kind", "lost", "client", "uid", "gid", "pid", "program")
    rows = zip(*(batch[name].to_pylist() for name in columns), strict=True)
    nobody = (None,) * 5
    assert list(rows) == [
        ("k", b"v", "MSG", None, 11, 12, 13, 14, "lampd"),
        ("é", b"abc", "MSG", None, 11, 12, 13, 14, "lampd"),
        ("", b"", "GAP", 9, *nobody),
        ("!/cred///", None, "MSG", None, 11, 12, 13, 14, ""),
        ("", b"", "GAP", None, *nobody),
    ]
    assert batch["offset"].to_pylist() == [5, 6, 7, 8, 9]
    assert batch["recipients"].to_pylist() == [3, 0, None, None, None]
    stamps_us = [1_500_000, 1_500_000, 3_000_000, 2_000_000, 3_000_000]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == stamps_us


PAYLOADS = st.none() | st.binary(max_size=20)
BATCHES = st.lists(
    st.tuples(st.text(max_size=5, alphabet="aé/"), PAYLOADS, st.none() | st.integers(0, 9)),
    min_size=1,
    max_size=4,
)


@given(st.lists(BATCHES | LOST.map(Lost), min_size=1, max_size=6), st.data())
def test_rows_of_batches_are_those_of_their_messages(
    items: list[list[tuple[str, bytes | None, int | None]] | Lost], data: st.DataObject
) -> None:
    batches: list[MonitoredBatch | MissedItems | Lost] = []
    wanted: list[tuple[object, ...]] = []
    for item in items:
        if isinstance(item, Lost):
            batches.append(item)
            wanted.append(("", b"", None, "GAP", item.count))
            continue
        keys, payloads, recipients = (list(column) for column in zip(*item, strict=True))
        sizes = [None if payload is None else len(payload) for payload in payloads]
        whole = b"".join(payload or b"" for payload in payloads)
        cut = data.draw(st.integers(0, len(whole)))
        batches.append(monitored(keys, sizes, recipients, whole[:cut], whole[cut:]))
        wanted += [(*one, "MSG", None) for one in item]
    rows = of_monitored(0, batches, 0)
    rows.validate(full=True)
    sizes = [value if value is None else len(value) for value in rows["value"].to_pylist()]
    assert rows["payload_bytes"].to_pylist() == sizes
    names = ("key", "value", "recipients", "kind", "lost")
    assert [*zip(*(rows[name].to_pylist() for name in names), strict=True)] == wanted
