"""When backlogs are sent though no socket reports room."""

import time
from collections.abc import Iterator
from typing import cast
from unittest.mock import patch

import pytest

from sbus.broker.delivery.send_times import TIME_SHARE, SendTimes
from sbus.broker.worker.send_retries import SendRetries
from sbus.broker.worker.session import Session
from sbus.shared.worker_statistics import WorkerStatistics

MS = 1_000_000


class Client:
    def __init__(self, account_place: int) -> None:
        self.account_place = account_place


def client(account_place: int) -> Session:
    return cast(Session, Client(account_place))


class Clock:
    now_ns = 1_000_000 * MS


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with patch.object(time, "monotonic_ns", lambda: clock.now_ns):
        yield clock


@pytest.fixture
def times() -> SendTimes:
    return SendTimes(3, WorkerStatistics())


def test_the_kernel_has_memory_in_a_moment(clock: Clock, times: SendTimes) -> None:
    retries, clients = SendRetries(times), [client(1), client(1)]
    assert retries.seconds_until_due() == float("inf")
    for waiting in clients:
        retries.wait_for_memory(waiting)
    assert retries.take_due() == []
    clock.now_ns += int(retries.seconds_until_due() * 1e9)
    assert retries.take_due() == clients
    assert retries.seconds_until_due() == float("inf")


def test_one_client_of_a_user_is_tried_at_a_time(clock: Clock, times: SendTimes) -> None:
    retries = SendRetries(times)
    clients, other = [client(1) for _ in range(3)], client(2)
    times.charge(1, 20 * MS, clock.now_ns)
    for waiting in (*clients, clients[0], other):
        retries.wait_for_time(waiting)
    assert retries.take_due() == [other]
    assert retries.take_due() == []
    assert retries.seconds_until_due() == pytest.approx(TIME_SHARE * 10e-3)
    clock.now_ns += TIME_SHARE * 10 * MS
    assert [retries.take_due() for _ in range(4)] == [[it] for it in clients] + [[]]


def test_clients_that_leave_are_forgotten(clock: Clock, times: SendTimes) -> None:
    retries, gone = SendRetries(times), client(1)
    retries.wait_for_time(gone)
    retries.wait_for_memory(gone)
    retries.remove(gone)
    clock.now_ns += 1_000 * MS
    assert retries.take_due() == []
    assert retries.seconds_until_due() == float("inf")
