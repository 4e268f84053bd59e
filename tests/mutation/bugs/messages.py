"""Planted faults of the message path: who pays, who waits, what is counted, and told."""

from tests.mutation.planted import Bug

_WORKER = "tests/unit/broker/worker"
_FRONT = "tests/unit/broker/front"
_DELIVERY = "tests/unit/broker/delivery"

BUGS = (
    Bug(
        "the sender that is told is the owner of the account",
        "Session.__init__",
        "self.uid, self.gid, self.pid = own.uid, own.gid, own.pid",
        "self.uid, self.gid, self.pid = connection.account.uid, own.gid, own.pid",
        found_by=["tests/broker/test_subordinate_ids.py"],
        step="compiled",
    ),
    Bug(
        "a message in the place of one that was too old counts as lost",
        "OutboxLedger.progress",
        'self._backlog.messages + self.replaced + self._dropped.get("age", 0)',
        "self._backlog.messages + self.replaced",
        found_by=[f"{_DELIVERY}/test_outbox_age.py"],
    ),
    Bug(
        "a user takes all room in the subscription table",
        "SubscriptionTable.has_room",
        "left_bytes >= used_bytes",
        "left_bytes >= 0",
        found_by=["tests/unit/shared/test_table_share.py"],
    ),
    Bug(
        "a busy worker that cannot be relieved stops placement",
        "Rebalancer._rebalance",
        "is_relieving |= await self._relieve(worker, now)",
        "await self._relieve(worker, now)\nis_relieving = True",
        found_by=[f"{_FRONT}/test_rebalancer.py"],
    ),
    Bug(
        "a worker that hangs stops placement",
        "Rebalancer._take_sample",
        "trio.move_on_after(_SAMPLE_WAIT_SECONDS_MAX)",
        "trio.move_on_after(1e9)",
        found_by=[f"{_FRONT}/test_rebalancer.py"],
    ),
    Bug(
        "publishers stay held by a pattern that was given up",
        "Subscriptions._unindex_rule",
        "_backpressure(session).release_waiters()",
        "",
        found_by=[
            f"{_WORKER}/test_subscriptions.py",
            "tests/protocol/11-holding-publishers-back.t",
            "tests/fuzz/test_held_publishers.py",
        ],
    ),
    Bug(
        "two versions of a rule are taken for each other",
        "BackpressureRule.changed_to",
        "self.version + 1",
        "self.version",
        found_by=[f"{_WORKER}/test_subscriptions.py"],
    ),
    Bug(
        "a place of a counter in C is not checked",
        "",
        "PLACE(worker_statistics, DROPPED_FAN_OUT),",
        "",
        file="_step.c",
        found_by=[f"{_WORKER}/test_ordinary_step.py"],
    ),
    Bug(
        "walks are not charged for bytes",
        "LogWalker._deliver_blocks",
        "len(entries) + deliveries + delivery_bytes // BYTES_PER_UNIT",
        "len(entries) + deliveries",
        found_by=[f"{_WORKER}/test_charges.py"],
    ),
    Bug(
        "an interruption by the host is charged to a user",
        "OperationTimes.own_time",
        "min(seconds, time.thread_time() - self._cpu_at_mark)",
        "seconds",
        found_by=[f"{_WORKER}/test_charges.py"],
    ),
    Bug(
        "disconnecting a client for a fault is charged to nobody",
        "Sessions.expel",
        "self._fair_queue.charge(session.account_place, cost)",
        "",
        found_by=[f"{_WORKER}/test_charges.py"],
    ),
    Bug(
        "an uncached key takes its whole batch out of the ordinary step",
        "gather",
        "messages and not has_looked_up",
        "False",
        found_by=[f"{_WORKER}/test_session.py"],
    ),
    Bug(
        "a client that has not read a receipt is read on",
        "Session.tell",
        "if self.outbox.controls_waiting:\n    self.is_at_rest = False",
        "",
        found_by=[f"{_WORKER}/test_ordinary_step.py"],
        step="compiled",
    ),
    Bug(
        "a later wait puts an earlier one off",
        "WaitQueue._set_due",
        "min(at_ns, self._due_ns.get((reason, number), at_ns))",
        "at_ns",
        found_by=[f"{_WORKER}/test_wait_queue.py"],
    ),
    Bug(
        "refusals are told for as long as connections wait",
        "Rejector.reject_silently",
        "self._was_empty and now - self._told_since > 1",
        "now - self._told_since > 1",
        found_by=[f"{_FRONT}/test_acceptor.py"],
    ),
    Bug(
        "a file with content is replaced by a socket",
        "_is_empty_file",
        "stat.S_ISREG(found.st_mode) and is_own and found.st_size == 0",
        "stat.S_ISREG(found.st_mode) and is_own",
        found_by=["tests/unit/unix/test_listener.py"],
    ),
    Bug(
        "a worker's share of idle time is the whole",
        "note_sleep",
        "slept_ns * times->processor_share / PROCESSOR_PARTS",
        "slept_ns",
        file="_fan_out.h",
        found_by=[f"{_WORKER}/test_machine.py"],
    ),
    Bug(
        "receipts that workers complete meanwhile are told first",
        "ReceiptTable.complete",
        "found = [it for it in reversed(self.open.values()) if self.is_complete(it.entry)]\n"
        "return found[::-1]",
        "return [it for it in self.open.values() if self.is_complete(it.entry)]",
        found_by=["tests/unit/shared/test_receipt_table.py"],
    ),
    Bug(
        "an interruption by the host makes users miss messages",
        "charge_debt",
        "smaller(spent_ns + EXCESS_FACTOR * excess_ns, CHARGE_NS_MAX)",
        "(spent_ns + EXCESS_FACTOR * excess_ns)",
        file="_fan_out.h",
        found_by=[f"{_WORKER}/test_ordinary_step.py"],
    ),
    Bug(
        "a limit beyond 31 bits ends the worker",
        "<module>",
        "Annotated[int, Meta(ge=1, le=2**30)]",
        "Annotated[int, Meta(ge=1)]",
        found_by=["tests/unit/cli/sbusd/test_plan.py"],
    ),
    Bug(
        "a stalled client takes publishing out of C for all",
        "gather",
        "*step->memory.stalled ? may_be_held(session, route) : 0",
        "*step->memory.stalled ? may_be_held(session, route) >= 0 : 0",
        file="_ordinary.h",
        found_by=[f"{_WORKER}/test_ordinary_step.py"],
    ),
)
