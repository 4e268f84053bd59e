"""Rows of any received messages."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sbus.client.inbox import Lost
from sbus.client.message_joiner import MonitoredMessage
from sbus.pipeline.recorder.message_rows import GAP_PACKET, of_monitored, of_packets
from sbus.pipeline.store.schemas import MESSAGES
from sbus.protocol.text import from_text
from tests.support.written import IDENTITY

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
    batch = of_packets(IDENTITY, first, packets, stamps_ns, losses)
    batch.rows.validate(full=True)
    assert batch.rows.schema.equals(MESSAGES)
    stamps_us = [ns // 1000 for ns in stamps_ns]
    assert batch.newest_us == max(stamps_us)
    assert batch.rows["offset"].to_pylist() == list(range(first, first + len(items)))
    assert batch.rows["timestamp"].cast(pa.int64()).to_pylist() == stamps_us
    shown = [batch.rows[name].to_pylist() for name in ("kind", "key", "value", "lost")]
    for item, kind, key, value, lost in zip(items, *shown, strict=True):
        if isinstance(item, tuple):
            assert (kind, from_text(key), value, lost) == ("MSG", *item, None)
        else:
            assert (kind, key, value, lost) == ("GAP", "", b"", item)


def test_monitored_messages_become_rows_with_their_publishers() -> None:
    message = MonitoredMessage(
        time=1.5,
        order=7,
        key="k",
        size=1,
        payload=b"v",
        recipients=3,
        client=11,
        uid=12,
        gid=13,
        pid=14,
        program="lampd",
        worker=1,
    )
    secret = MonitoredMessage(
        time=2.0,
        order=8,
        key="!/cred///",
        size=None,
        payload=None,
        recipients=None,
        client=11,
        uid=12,
        gid=13,
        pid=14,
        program="",
        worker=1,
    )
    batch = of_monitored(IDENTITY, 5, [message, Lost(9), secret, Lost(None)], 3_000_000)
    batch.rows.validate(full=True)
    columns = ("key", "value", "kind", "lost", "client", "uid", "gid", "pid", "program")
    rows = zip(*(batch.rows[name].to_pylist() for name in columns), strict=True)
    nobody = (None,) * 5
    assert list(rows) == [
        ("k", b"v", "MSG", None, 11, 12, 13, 14, "lampd"),
        ("", b"", "GAP", 9, *nobody),
        ("!/cred///", None, "MSG", None, 11, 12, 13, 14, ""),
        ("", b"", "GAP", None, *nobody),
    ]
    assert batch.rows["recipients"].to_pylist() == [3, None, None, None]
    stamps_us = [1_500_000, 3_000_000, 2_000_000, 3_000_000]
    assert batch.rows["timestamp"].cast(pa.int64()).to_pylist() == stamps_us
    assert batch.newest_us == 3_000_000
