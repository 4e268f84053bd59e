"""Rate-limited log entries: a bounded number, none of which hides how many were left out."""

import os
from collections.abc import Iterator

import pytest

from sbus.broker.events import rate_limit
from sbus.broker.events.rate_limit import LogRateLimiter, limit_reached
from sbus.limits import Limits
from sbus.protocol.events import AcceptingPaused
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import (
    BACKLOG_BYTES,
    CONNECTION_RATE,
    CONNECTIONS,
    HELD_TIME,
    MATCH_STEPS,
    PUBLISH_RATE,
    SUBSCRIPTION_BYTES,
    SUBSCRIPTIONS,
    Accounts,
)
from sbus.shared.shared_memory import SharedMemory
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import program_name
from tests.support.events import logging_to
from tests.unit.shared.memories import open_memory


class Log:
    """A rate-limited log whose lines and clock are the test's."""

    def __init__(self, interval_seconds: float = 10.0) -> None:
        self.lines: list[str] = []
        self.now = 1000.0
        events = logging_to(self.lines)
        self.rate_limiter = LogRateLimiter(interval_seconds, events, clock=lambda: self.now)

    def write(self, code: str, uid: int, text: str) -> None:
        self.rate_limiter.log(code, uid, lambda: AcceptingPaused(why=text))

    def texts(self) -> list[str]:
        """What was logged, without the words that every pause has."""
        return [line.partition(": ")[2] for line in self.lines]


def test_the_same_entry_about_a_user_is_logged_once_per_interval() -> None:
    log = Log()
    for _ in range(5):
        log.write("no-nul", 7, "bad packet")
    log.now += 9.99
    log.write("no-nul", 7, "bad packet")
    assert log.texts() == ["bad packet"]
    log.now += 0.01
    log.write("no-nul", 7, "bad again")
    assert log.texts() == ["bad packet", "bad again (and 5 more like it)"]
    log.now += 10
    log.write("no-nul", 7, "third")
    assert log.texts()[2:] == ["third"]


def test_users_and_codes_are_limited_apart() -> None:
    log = Log()
    for code, uid in (("a", 1), ("a", 2), ("b", 1), ("a", 1)):
        log.write(code, uid, f"{code}{uid}")
    assert log.texts() == ["a1", "a2", "b1"]


def test_a_code_is_logged_about_so_many_users_in_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_limit, "_ENTRIES_MAX", 10)
    log = Log()
    for uid in range(1000):
        log.write("a", uid, str(uid))
    log.write("a", 0, "known")
    log.write("b", 999, "another code")
    assert log.texts() == [*map(str, range(10)), "another code"]
    log.now += 10
    for uid in range(500, 520):
        log.write("a", uid, str(uid))
    first, *others = log.texts()[11:]
    assert first == "500 (and 991 more like it)"
    assert others == [str(uid) for uid in range(501, 510)]


def test_the_log_has_room_for_a_user_again_one_interval_after_the_oldest_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_limit, "_ENTRIES_MAX", 2)
    log = Log()
    for uid in (1, 2, 3):
        log.write("a", uid, f"{uid}")
        log.now += 4
    assert log.texts() == ["1", "2"]
    log.write("a", 3, "3")
    log.write("a", 1, "1")
    assert log.texts()[2:] == ["3 (and 1 more like it)"]


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with open_memory(2, LIMITS) as opened:
        opened.lock.open()
        yield opened


# -- users that reached a limit --------------------------------------------------------------------
OWN = Credentials(gid=1, uid=1000, pid=os.getpid())
LIMITS = Limits()
ALL = {
    SUBSCRIPTIONS: "user_subscriptions_max",
    SUBSCRIPTION_BYTES: "user_subscription_bytes_max",
    BACKLOG_BYTES: "user_backlog_bytes_max",
    MATCH_STEPS: "user_match_steps_max",
    PUBLISH_RATE: "user_messages_per_second_max",
    HELD_TIME: "user_held_seconds_max",
    CONNECTIONS: "user_connections_max",
    CONNECTION_RATE: "user_connections_per_second_max",
}


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
    memory: SharedMemory, lines: list[str]
) -> None:
    book = AccountBook(memory.accounts, 2, LIMITS)
    for uid in (1000, 1001):
        account = book.of(uid, LIMITS.user, 0)
        assert account is not None
        for worker in (0, 1, 0):
            own = Accounts(memory.accounts, 2, LIMITS, worker)[account.place]
            for limit in (PUBLISH_RATE, BACKLOG_BYTES):
                rate_limiter = LogRateLimiter(60.0, logging_to(lines), memory.lock)
                rate_limiter.log_limit_reached(limit, own, Credentials(gid=1, uid=uid, pid=1))
    assert len(lines) == 4
    assert sum("uid 1000 " in line for line in lines) == 2


def test_it_is_reported_again_when_the_interval_is_over(
    memory: SharedMemory, lines: list[str]
) -> None:
    account = AccountBook(memory.accounts, 2, LIMITS).of(1000, LIMITS.user, 0)
    assert account is not None
    for _ in range(3):
        LogRateLimiter(0.0, logging_to(lines), memory.lock).log_limit_reached(
            HELD_TIME, account, OWN
        )
    assert len(lines) == 3
