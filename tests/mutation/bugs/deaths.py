"""Planted faults of what happens when workers die: what a successor knows, and does."""

from tests.mutation.planted import Bug

_WORKER = "tests/unit/broker/worker"
_FRONT = "tests/unit/broker/front"
_DELIVERY = "tests/unit/broker/delivery"

BUGS = (
    Bug(
        "a reply is sent again by a successor",
        "ClientSlot.replying",
        "self.forget_pending()",
        "",
        found_by=["tests/unit/shared/test_client_slots.py", f"{_DELIVERY}/test_outbox.py"],
    ),
    Bug(
        "a message that was only held has its receipt",
        "Sequencer._append",
        "batch.receipt is not None and batch.messages",
        "batch.receipt is not None",
        found_by=[f"{_WORKER}/test_receipts.py"],
    ),
    Bug(
        "receipts are not told in the order of their messages behind a death",
        "ReceiptTable.succeed",
        "taken.sort(key=marks.__getitem__)",
        "",
        found_by=["tests/unit/shared/test_receipt_table.py"],
    ),
    Bug(
        "a receipt never comes that was placed during a succession",
        "Inheritance.take_over",
        "self._subscriptions.start()\nself._succeed_receipts(placed)",
        "self._succeed_receipts(placed)\nself._subscriptions.start()",
        found_by=[
            f"{_WORKER}/test_receipts.py",
            "tests/simulation/test_simulation.py::test_promises_hold_whatever_fails_when",
        ],
        step="compiled",
    ),
    Bug(
        "a notice that waits is taken for told",
        "Inheritance._note_told",
        "if not session.outbox.controls_waiting:\n    session.slot.note_told()",
        "session.slot.note_told()",
        found_by=[f"{_WORKER}/test_inheritance.py"],
    ),
    Bug(
        "a packet is not pending while it is read",
        "Session._receive_batch",
        "self.slot.pending = len(packets) + 1",
        "",
        found_by=[f"{_WORKER}/test_inheritance.py", f"{_WORKER}/test_session.py"],
    ),
    Bug(
        "a packet is not pending while the compiled step reads it",
        "receive_packets",
        "share_pending(step, session, step->packets_count + 1);",
        "",
        file="_ordinary.h",
        found_by=[
            f"{_WORKER}/test_inherited_requests.py",
            f"{_WORKER}/test_step_deaths.py",
            "tests/simulation/test_simulation.py::test_promises_hold_whatever_fails_when",
        ],
    ),
    Bug(
        "clients are counted below zero that a dead worker had stalled",
        "StallTable.reap",
        "self._words[place] = self._words[place + 1] = 0",
        "self.clear(place)",
        found_by=["tests/unit/shared/test_stall_table.py"],
    ),
    Bug(
        "the log is given up at the second death in a row",
        "Supervisor._restart",
        "worker.restart_delay_seconds > _KEPT_SECONDS_MAX",
        "worker.restart_delay_seconds > 0",
        found_by=[f"{_FRONT}/test_supervisor.py"],
    ),
    Bug(
        "words are changed in the valid copy",
        "MemoryLock.__enter__",
        "spare = self._copies[self._spare]",
        "self._spare = current\nspare = self._copies[current]",
        found_by=[
            "tests/unit/shared",
            "tests/simulation/test_simulation.py::test_promises_hold_whatever_fails_when",
        ],
        step="compiled",
    ),
    Bug(
        "progress in an earlier log block counts for a later one",
        "InFlight.begin_block",
        "self._words[WALK_PROGRESS] = 0",
        "",
        found_by=[f"{_WORKER}/test_successive_deaths.py"],
    ),
    Bug(
        "progress in an earlier log block counts for a later one, compiled",
        "begin_block",
        "store(&memory->in_flight[WALK_PROGRESS], 0);",
        "",
        file="_memory.h",
        found_by=[
            f"{_WORKER}/test_successive_deaths.py",
            "tests/simulation/test_simulation.py::test_promises_hold_whatever_fails_when",
        ],
    ),
    Bug(
        "a succession looks at log blocks under the lock",
        "UnfinishedWork.begin",
        "batch = self._in_flight.interrupted_batch(words)",
        "batch = self._in_flight.interrupted_batch(words)\nself._log.look_ahead(end)",
        found_by=[f"{_WORKER}/test_kept_log.py"],
    ),
    Bug(
        "a journal is read before compactions wait for it",
        "Inheritance.take_over",
        (
            "interrupted = self._sequencer.unfinished.begin(self._slots())\n"
            "self._succeed_receipts(placed)\n"
            "journal = _Journal(self._context)"
        ),
        (
            "journal = _Journal(self._context)\n"
            "interrupted = self._sequencer.unfinished.begin(self._slots())\n"
            "self._succeed_receipts(placed)"
        ),
        found_by=[f"{_WORKER}/test_inheritance.py"],
    ),
    Bug(
        "the log kept for a dead worker is overwritten",
        "OrderedLog.reap",
        "words[LOG_LOW] = self._low_water_mark(words)",
        "",
        found_by=[f"{_WORKER}/test_kept_log.py", "tests/unit/shared/test_ordered_log.py"],
    ),
    Bug(
        "an interrupted batch is admitted twice",
        "UnfinishedWork.begin",
        "self._in_flight.start(self._log.cursor)",
        "self._in_flight.begin_block(self._log.cursor)",
        found_by=[f"{_WORKER}/test_successive_deaths.py"],
    ),
    Bug(
        "the compiler may reorder stores to shared memory",
        "store",
        "atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_release);",
        "*word = value;",
        file="_memory.h",
        found_by=[f"{_WORKER}/test_release_deaths.py"],
    ),
    Bug(
        "figures are copied to shared memory by an uncounted store",
        "serve_lone",
        "store_bytes(step->shared_counts, ",
        "memcpy(step->shared_counts, ",
        file="_step.c",
        found_by=[f"{_WORKER}/test_step_deaths.py"],
    ),
    Bug(
        "a successor serves before it has taken over",
        "SupervisedWorker.is_serving",
        "self.has_started and not self.is_succeeding",
        "self.has_started",
        found_by=[f"{_FRONT}/test_supervisor.py"],
    ),
    Bug(
        "an upgrade begins while a worker is replaced",
        "WorkerRounds.begin",
        "await self._supervisor.wait_for_successors()",
        "",
        found_by=[f"{_FRONT}/test_worker_rounds.py"],
    ),
    Bug(
        "a death that is not reported yet fails no hand-over",
        "WorkerRounds.check",
        "for worker in self._supervisor.ended_workers():\n    self.on_worker_death(worker)",
        "",
        found_by=[f"{_FRONT}/test_worker_rounds.py"],
    ),
    Bug(
        "a memory of another layout has the same version",
        "<module>",
        "LAYOUT_VERSION: Final = 9",
        "LAYOUT_VERSION: Final = 8",
        found_by=["tests/unit/shared/test_shared_memory.py"],
    ),
)
