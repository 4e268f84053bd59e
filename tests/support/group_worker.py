"""A member of a worker group: `python -m tests.support.group_worker ADDRESS LOOP JOBS`.

LOOP is `trio`, `asyncio` or `blocking`. It publishes its process id as the result of each job. It
stops, with a job in its hands, when it has done so many JOBS; never if that is 0.
"""

import faulthandler
import os
import sys
import time

import anyio

import sbus

GROUP = "workers"
PID = str(os.getpid())


async def work(address: str, jobs_max: int) -> None:
    async with (
        sbus.connect(address, sender=True) as bus,
        bus.worker_group(GROUP, "jobs") as jobs,
    ):
        print("ready", flush=True)
        number = 0
        async for job in jobs:
            await bus.publish(b"results/" + job.payload, PID)
            if number == jobs_max > 0:
                hang()
            await job.done()
            number += 1


def work_blocking(address: str, jobs_max: int) -> None:
    with (
        sbus.blocking.connect(address, sender=True) as bus,
        bus.worker_group(GROUP, "jobs") as jobs,
    ):
        print("ready", flush=True)
        for number, job in enumerate(jobs):
            bus.publish(b"results/" + job.payload, PID)
            if number == jobs_max > 0:
                hang()
            job.done()


def hang() -> None:
    time.sleep(3600)


if __name__ == "__main__":
    faulthandler.enable()
    address, loop, jobs = sys.argv[1:]
    if loop == "blocking":
        work_blocking(address, int(jobs))
    else:
        anyio.run(work, address, int(jobs), backend=loop)
