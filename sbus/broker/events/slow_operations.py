"""Operations that took too long are events."""

from sbus.broker.events.rate_limit import NO_USER, LogRateLimiter
from sbus.protocol.events import SlowOperation
from sbus.shared.operation_times import OperationTimes
from sbus.shared.shared_memory import SharedMemory, TimedLock


def time_operations(
    memory: SharedMemory, worker: int | None, rate_limiter: LogRateLimiter
) -> OperationTimes:
    """The operation times of this process: a worker, or the front if None. From now on its critical
    sections are timed where they may last."""
    place, process = (memory.workers, "front") if worker is None else (worker, f"worker {worker}")

    def report(kind: str, what: str, seconds: float, cpu_seconds: float) -> None:
        rate_limiter.log(
            f"slow-{kind}",
            NO_USER,
            lambda: SlowOperation(
                process=process,
                operation=f"{kind} {what}".rstrip(),
                seconds=round(seconds, 4),
                cpu_seconds=round(cpu_seconds, 4),
            ),
        )

    times = OperationTimes(memory.operations, place, report)
    memory.lock.timed = TimedLock(memory.lock, times)
    return times
