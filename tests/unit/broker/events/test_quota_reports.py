"""What an administrator reads of users at their limits: once, whichever worker finds it."""

import os
from collections.abc import Iterator

import pytest

from sbus.broker.events.quota_reports import QuotaReporter, limit_reached
from sbus.limits import Limits
from sbus.shared.accounts import (
    BACKLOG_BYTES,
    CONNECTIONS,
    HELD_TIME,
    PUBLISH_RATE,
    SUBSCRIPTION_BYTES,
    SUBSCRIPTIONS,
    AccountBook,
    Accounts,
)
from sbus.shared.segment import Segment
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import program_name
from tests.support.events import logging_to
from tests.unit.shared.segments import open_segment

OWN = Credentials(gid=1, uid=1000, pid=os.getpid())
LIMITS = Limits()
ALL = {
    SUBSCRIPTIONS: "user_subscriptions_max",
    SUBSCRIPTION_BYTES: "user_subscription_bytes_max",
    BACKLOG_BYTES: "user_backlog_bytes_max",
    PUBLISH_RATE: "user_messages_per_second_max",
    HELD_TIME: "user_held_seconds_max",
    CONNECTIONS: "user_connections_max",
}


@pytest.fixture
def segment() -> Iterator[Segment]:
    with open_segment(2, LIMITS) as opened:
        opened.open_lock()
        yield opened


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.mark.parametrize("limit", ALL)
def test_a_line_names_the_user_the_process_and_the_limit_to_change(limit: int) -> None:
    line = limit_reached(limit, OWN).text()
    assert f"uid {OWN.uid} " in line
    assert f"pid {OWN.pid} ({program_name(OWN.pid).decode()})" in line
    assert ALL[limit] in line
    assert hasattr(LIMITS, ALL[limit])


def test_two_workers_report_the_same_limit_of_a_user_once(
    segment: Segment, lines: list[str]
) -> None:
    book = AccountBook(segment.accounts, 2, LIMITS)
    for uid in (1000, 1001):
        account = book.of(uid, LIMITS.user, 0)
        assert account is not None
        for worker in (0, 1, 0):
            own = Accounts(segment.accounts, 2, LIMITS, worker)[account.place]
            for limit in (PUBLISH_RATE, BACKLOG_BYTES):
                reports = QuotaReporter(segment, 60.0, logging_to(lines))
                reports.report(limit, own, Credentials(gid=1, uid=uid, pid=1))
    assert len(lines) == 4
    assert sum("uid 1000 " in line for line in lines) == 2


def test_it_is_reported_again_when_the_interval_is_over(segment: Segment, lines: list[str]) -> None:
    account = AccountBook(segment.accounts, 2, LIMITS).of(1000, LIMITS.user, 0)
    assert account is not None
    for _ in range(3):
        QuotaReporter(segment, 0.0, logging_to(lines)).report(HELD_TIME, account, OWN)
    assert len(lines) == 3
