"""The bounds of a backlog, and what is kept beyond them."""

import msgspec

from sbus.broker.delivery.bounded_backlog import BoundedBacklog
from sbus.broker.ipc.client_record import BacklogRecord
from sbus.limits import Limits
from sbus.protocol.controls import BacklogOrder
from sbus.shared.accounts import BACKLOG_BYTES
from sbus.shared.worker_statistics import IN_BACKLOG, WorkerStatistics
from tests.unit.shared.memories import open_account

LIMITS = msgspec.structs.replace(Limits(), backlog_messages_max=3)


def test_a_backlog_that_follows_another_may_be_beyond_its_bounds_until_it_is_sent() -> None:
    """Another bus had other limits."""
    account, statistics = open_account(LIMITS), WorkerStatistics()
    backlog = BoundedBacklog(BacklogOrder.QUEUE, LIMITS, account, statistics)
    backlog.follow(BacklogRecord(items=[b"1", b"2", b"3", b"4", b"5"]))
    assert statistics.counts[IN_BACKLOG] == 5
    for _ in range(2):
        assert backlog.offer(b"more") == "hard"
        backlog.check_invariants()
        backlog.pop()
    assert backlog.offer(b"more") == "hard"
    backlog.pop()
    assert backlog.offer(b"6") is None
    backlog.check_invariants()
    backlog.clear()
    assert account.own_use(BACKLOG_BYTES) == statistics.counts[IN_BACKLOG] == 0
