"""Messages by the beginnings of their keys: each once, and never too many to tell apart."""

import pytest

from sbus.cli.top.loads import PREFIXES_MAX, PrefixCounts
from sbus.client.message_joiner import MonitoredMessage


def message(key: str, size: int | None = 0, recipients: int | None = 0) -> MonitoredMessage:
    return MonitoredMessage(
        time=0.0,
        order=0,
        key=key,
        size=size,
        payload=None,
        recipients=recipients,
        client=1,
        uid=2,
        gid=3,
        pid=4,
        program="p",
        worker=0,
    )


@pytest.mark.parametrize(
    ("separator", "depth", "key", "prefix"),
    [
        ("/", 1, "a", "a"),
        ("/", 1, "a/b/c", "a/"),
        ("/", 1, "", ""),
        ("/", 1, "/a", "/"),
        ("/", 2, "a/b", "a/b"),
        ("/", 2, "a/b/", "a/b/"),
        ("/", 2, "a/b/c", "a/b/"),
        ("/", 2, "a.b/c.d/e", "a.b/c.d/"),
        (".", 2, "a.b/c.d/e", "a.b/c."),
        ("/", 1, "\\x1b/\\\\", "\\x1b/"),
    ],
)
def test_a_prefix_is_so_many_segments_and_a_separator_if_there_are_more(
    separator: str, depth: int, key: str, prefix: str
) -> None:
    counts = PrefixCounts(separator, depth)
    counts.add(message(key))
    assert [row.prefix for row in counts.take(1.0)] == [prefix]


def test_messages_bytes_and_recipients_are_added_up_and_then_begin_anew() -> None:
    counts = PrefixCounts("/", 1)
    counts.add(message("a/\\xff", size=10, recipients=3))
    counts.add(message("a/b", size=None, recipients=None))
    (row,) = counts.take(2.0)
    packets = len(b"MSG a/\xff\0") + 10 + len(b"MSG a/b\0")
    assert row.messages_in_per_second == 1.0
    assert row.bytes_in_per_second == packets / 2.0
    assert row.delivered_per_second == 1.5
    assert counts.take(1.0) == []


def test_what_is_too_much_to_tell_apart_is_counted_together() -> None:
    counts = PrefixCounts("/", 1)
    for _ in range(2):
        for number in range(PREFIXES_MAX + 10):
            counts.add(message(f"{number}/x"))
    rows = counts.take(1.0)
    assert len(rows) == PREFIXES_MAX + 1
    assert {row.prefix: row.messages_in_per_second for row in rows}[None] == 20.0
    assert sum(row.messages_in_per_second for row in rows) == 2 * (PREFIXES_MAX + 10)
