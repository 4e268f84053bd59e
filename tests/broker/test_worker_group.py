"""Worker groups on a real bus: every job is done, also when a member dies."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

import sbus
from sbus.unix.readiness import is_readable_within
from tests.support.bus import PROJECT, Bus, running_bus, sbusd_environment
from tests.support.event_loops import on_both_event_loops

TIMEOUT_S = 60.0
START_SECONDS_MAX = 60.0
"""For a member's process to be in its group."""
JOBS = 60
MANY_JOBS = 2_000
SMALL_BACKLOGS = (
    *("--limit", "backlog_messages_max=100"),
    *("--limit", "user_held_seconds_max=60"),
)
BEFORE_DEATH = 4
"""Jobs that a member does before it hangs with the next one."""

Client = sbus.blocking.Connection[sbus.Message]


@contextmanager
def working(bus: Bus, loop: str, jobs: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A member in a process of its own, which hangs after so many jobs."""
    program = (sys.executable, "-m", "tests.support.group_worker")
    process = subprocess.Popen(
        [*program, bus.address, loop, str(jobs)],
        cwd=PROJECT,
        env=sbusd_environment(),
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        if not is_readable_within(process.stdout.fileno(), START_SECONDS_MAX):
            process.send_signal(signal.SIGABRT)  # it prints where it waits
            pytest.fail("a member does not begin")
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


class Results:
    """What the members have published."""

    def __init__(self, client: Client) -> None:
        self._client = client
        client.subscribe("results/*")
        client.sync(timeout_seconds=TIMEOUT_S)
        self.by_job: dict[int, list[int]] = {}
        """The processes that have done each job, by its number."""

    def receive(self) -> None:
        message = self._client.receive(timeout_seconds=TIMEOUT_S)
        number = int(message.key.removeprefix(b"results/"))
        self.by_job.setdefault(number, []).append(int(message.payload))

    def of(self, pid: int) -> list[int]:
        return [number for number, pids in self.by_job.items() if pid in pids]


def publish(client: Client, numbers: range) -> None:
    client.publish_many("jobs", map(str, numbers), timeout_seconds=TIMEOUT_S)


def test_what_a_killed_member_had_is_done_by_others(bus: Bus) -> None:
    with ExitStack() as stack:
        connected = sbus.blocking.connect(bus.address, timeout_seconds=TIMEOUT_S)
        client = stack.enter_context(connected)
        results = Results(client)
        for loop in ("asyncio", "trio"):
            stack.enter_context(working(bus, loop))
        victim = stack.enter_context(working(bus, "blocking", BEFORE_DEATH))
        publish(client, range(JOBS))
        while len(results.of(victim.pid)) <= BEFORE_DEATH:
            results.receive()
        in_hand = results.of(victim.pid)[-1]
        victim.kill()
        victim.wait(TIMEOUT_S)
        publish(client, range(JOBS, 2 * JOBS))
        while len(results.by_job) < 2 * JOBS or len(results.by_job[in_hand]) < 2:
            results.receive()
    counts = {number: len(pids) for number, pids in results.by_job.items()}
    assert counts == dict.fromkeys(range(2 * JOBS), 1) | {in_hand: 2}
    shares = Counter(pid for pids in results.by_job.values() for pid in pids)
    assert len(shares) == 3


@on_both_event_loops
async def test_jobs_go_to_one_member_until_it_leaves(bus: Bus) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with (
            sbus.connect(bus.address) as publisher,
            sbus.connect(bus.address, sender=True) as first,
            sbus.connect(bus.address, sender=True) as second,
            first.worker_group("g", "jobs/*", "more") as staying,
        ):
            async with second.worker_group("g", "jobs/*", "more"):
                for number in range(20):
                    receipt = await publisher.publish_with_receipt("jobs/1", str(number))
                    assert receipt.sent == 2
            jobs = [await staying.receive() for _ in range(20)]
            assert sorted(int(job.payload) for job in jobs) == list(range(20))
            assert len({job.place for job in jobs}) == 20
            for job in jobs:
                await job.done()
            await publisher.publish("more", "x")
            last = await staying.receive()
            assert (last.key, last.payload) == (b"more", b"x")
        with pytest.raises(RuntimeError, match="has left the group"):
            await last.done()


@on_both_event_loops
async def test_a_member_with_other_jobs_than_the_others_is_refused(bus: Bus) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with (
            sbus.connect(bus.address, sender=True) as first,
            sbus.connect(bus.address, sender=True) as second,
            first.worker_group("g", "jobs") as jobs,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(jobs.receive)
            with pytest.raises(sbus.GroupRefused, match="other patterns"):
                async with second.worker_group("g", "other") as others:
                    await others.receive()
            tasks.cancel_scope.cancel()


@on_both_event_loops
async def test_a_busy_member_that_holds_publishers_does_not_hold_itself(small_bus: Bus) -> None:
    """It reads between its jobs, so that it can send that they are done."""
    with anyio.fail_after(TIMEOUT_S):
        async with (
            sbus.connect(small_bus.address) as publisher,
            sbus.connect(small_bus.address, sender=True) as worker,
            worker.worker_group("g", "jobs") as jobs,
            anyio.create_task_group() as tasks,
        ):
            await worker.control("blocking/hard/block")
            await worker.sync()
            tasks.start_soon(publisher.publish_many, "jobs", map(str, range(MANY_JOBS)))
            for number in range(MANY_JOBS):
                job = await jobs.receive()
                assert job.payload == str(number).encode()
                await job.done()


@pytest.fixture
def small_bus(tmp_path: Path) -> Iterator[Bus]:
    """With small backlogs."""
    with running_bus(tmp_path, *SMALL_BACKLOGS) as bus:
        yield bus


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        (["g.*"], sbus.PacketRefused, "not-allowed"),
        ([f"g.{digit:x}*" for digit in range(16)], sbus.GroupRefused, "cannot see"),
    ],
)
def test_members_that_rules_hide_from_each_other_are_refused(
    tmp_path: Path, names: list[str], error: type[sbus.BusError], text: str
) -> None:
    """A rule for all names is one for the subscription; other rules hide what comes."""
    keys = [f"!/presence/*/{name}" for name in names]
    configuration = tmp_path / "sbus.toml"
    configuration.write_text(f'[[rules]]\ndeny = ["subscribe"]\nkeys = {keys}\n')
    with (
        running_bus(tmp_path, "--config", str(configuration)) as bus,
        sbus.blocking.connect(bus.address, sender=True) as client,
    ):
        refused = pytest.raises(error, match=text)
        with refused, client.worker_group("g", "jobs", timeout_seconds=TIMEOUT_S):
            pass


@pytest.mark.parametrize(
    ("has_senders", "error", "text"),
    [(False, sbus.ConfigurationError, "sender=True"), (True, sbus.GroupRefused, "echo/off")],
    ids=["senders", "echo"],
)
def test_a_client_without_senders_or_echo_is_no_member(
    bus: Bus, has_senders: bool, error: type[Exception], text: str
) -> None:
    with sbus.blocking.connect(bus.address, sender=has_senders) as client:
        client.control("echo/off" if has_senders else "echo/on")
        refused = pytest.raises(error, match=text)
        with refused, client.worker_group("g", "jobs", timeout_seconds=TIMEOUT_S):
            pass
        assert client.members(timeout_seconds=TIMEOUT_S) == []
