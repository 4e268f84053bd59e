"""The rows of `sbusctl top`: differences of two looks, and prefixes of keys."""

from typing import Any

import pytest

from sbus.cli.top.loads import (
    PREFIXES_MAX,
    ClientLoad,
    PrefixCounts,
    Top,
    client_loads,
    sorted_by,
    user_loads,
    worker_loads,
)
from sbus.client.message_joiner import MonitoredMessage
from sbus.protocol.admin_results import ClientReport
from tests.support import admin_samples as sample


def client(number: int, **activity: Any) -> ClientReport:
    figures = {"messages_in": 0, "bytes_in": 0, "delivered": 0, "discarded": 0, "backlog": 0}
    return sample.client(number, activity=sample.activity(**{**figures, **activity}))


def by_number(*clients: ClientReport) -> dict[int, ClientReport]:
    return {one.client: one for one in clients}


def test_rates_are_differences_divided_by_the_time() -> None:
    before = by_number(
        client(1, messages_in=100, bytes_in=1_000, delivered=50, discarded=5, backlog=70)
    )
    now = [client(1, messages_in=130, bytes_in=3_000, delivered=60, discarded=6, backlog=7)]
    (row,) = client_loads(before, now, 2.0)
    assert (row.client, row.uid, row.pid, row.program, row.worker) == (1, 0, 30_001, "lampd", 0)
    assert (row.messages_in_per_second, row.bytes_in_per_second) == (15.0, 1_000.0)
    assert (row.delivered_per_second, row.discarded_per_second, row.backlog) == (5.0, 0.5, 7)


def test_a_new_client_counted_from_zero_and_one_that_left_is_not_shown() -> None:
    rows = client_loads(by_number(client(1, messages_in=9)), [client(2, messages_in=8)], 4.0)
    assert [(row.client, row.messages_in_per_second) for row in rows] == [(2, 2.0)]


def test_a_client_that_is_unknown_in_one_look_is_left_out() -> None:
    unknown = sample.client(1, activity=None)
    assert not [*client_loads(by_number(unknown), [client(1, messages_in=9)], 1.0)]
    assert not [*client_loads(by_number(client(1)), [unknown], 1.0)]


def test_users_are_the_sums_of_their_clients() -> None:
    clients = [
        ClientLoad(
            client=number,
            uid=uid,
            pid=1,
            program="p",
            worker=0,
            messages_in_per_second=1.0 * number,
            bytes_in_per_second=10.0 * number,
            delivered_per_second=100.0 * number,
            discarded_per_second=0.5 * number,
            backlog=1_000 * number,
        )
        for number, uid in ((1, 7), (2, 8), (4, 7))
    ]
    seven, eight = user_loads(clients)
    assert (seven.uid, seven.clients, eight.uid, eight.clients) == (7, 2, 8, 1)
    assert (seven.messages_in_per_second, seven.bytes_in_per_second) == (5.0, 50.0)
    assert (seven.delivered_per_second, seven.discarded_per_second) == (500.0, 2.5)
    assert (seven.backlog, eight.backlog) == (5_000, 2_000)


def test_counters_of_a_client_begin_at_0_again_when_its_worker_has_died() -> None:
    before = by_number(client(1, messages_in=100_000, delivered=30))
    (row,) = client_loads(before, [client(1, messages_in=50, delivered=40)], 2.0)
    assert (row.messages_in_per_second, row.delivered_per_second) == (25.0, 5.0)


def test_counters_of_a_replaced_worker_continue_except_for_cpu_time() -> None:
    before = {n: sample.worker(n, cpu_seconds=100.0) for n in range(2)}
    traffic = sample.traffic(
        messages_in=12_345 + 30,
        bytes_in=4_718_592 + 300,
        delivered=61_000 + 3_000,
        discarded={"soft": 12 + 2, "hard": 700 + 1, "quota": 0, "unheld": 3},
        backlog=77,
    )
    now = [
        sample.worker(0, cpu_seconds=101.5, traffic=traffic),
        sample.worker(1, pid=9_999, cpu_seconds=0.6, traffic=traffic, clients=3),
    ]
    first, second = worker_loads(before, now, 3.0)
    assert first.cpu_percent == pytest.approx(50.0)
    assert second.cpu_percent == pytest.approx(20.0)
    assert (second.pid, second.clients, second.backlog) == (9_999, 3, 77)
    assert (first.messages_in_per_second, first.bytes_in_per_second) == (10.0, 100.0)
    assert first.delivered_per_second == 1_000.0
    assert first.discarded_per_second == 1.0


def test_sorting_is_stable() -> None:
    now = [
        client(1, messages_in=5, backlog=3),
        client(2, messages_in=9, backlog=3),
        client(3, messages_in=7, backlog=4),
    ]
    top = Top(by="client", seconds=1.0, rows=[*client_loads({}, now, 1.0)])

    def numbers(sort: Any) -> list[int]:
        return [row.client for row in sorted_by(top, sort).rows if isinstance(row, ClientLoad)]

    assert numbers("in") == [2, 3, 1]
    assert numbers("backlog") == [3, 1, 2]
    assert numbers("lost") == [1, 2, 3]


# -- keys ------------------------------------------------------------------------------------------
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
def test_a_prefix_ends_in_a_separator_if_the_key_is_longer(
    separator: str, depth: int, key: str, prefix: str
) -> None:
    counts = PrefixCounts(separator, depth)
    counts.add(message(key))
    assert [row.prefix for row in counts.take(1.0)] == [prefix]


def test_messages_bytes_and_recipients_are_summed_until_they_are_taken() -> None:
    counts = PrefixCounts("/", 1)
    counts.add(message("a/\\xff", size=10, recipients=3))
    counts.add(message("a/b", size=None, recipients=None))
    (row,) = counts.take(2.0)
    packets = len(b"MSG a/\xff\0") + 10 + len(b"MSG a/b\0")
    assert row.messages_in_per_second == 1.0
    assert row.bytes_in_per_second == packets / 2.0
    assert row.delivered_per_second == 1.5
    assert counts.take(1.0) == []


def test_prefixes_beyond_the_bound_are_counted_together() -> None:
    counts = PrefixCounts("/", 1)
    for _ in range(2):
        for number in range(PREFIXES_MAX + 10):
            counts.add(message(f"{number}/x"))
    rows = counts.take(1.0)
    assert len(rows) == PREFIXES_MAX + 1
    assert {row.prefix: row.messages_in_per_second for row in rows}[None] == 20.0
    assert sum(row.messages_in_per_second for row in rows) == 2 * (PREFIXES_MAX + 10)
