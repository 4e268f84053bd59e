"""How fast a live bus is recorded, and whether anything is lost.

A bus with one worker and its publishers share one CPU; the recorder has another. The publishers
send numbered messages, as fast as they can or at a given rate, and never wait: what the recorder
cannot keep up with is dropped, by a subscription after the bus has queued much of it. Afterwards
the recording is read: all messages must be there, in order, or be counted by a GAP row.
"""

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from operator import call
from pathlib import Path
from tempfile import TemporaryDirectory

from sbus.bench import BenchmarkFailed, proc
from sbus.bench.programs import pinned, running
from sbus.bench.report import Result
from sbus.bench.servers import RunSettings
from sbus.pipeline.store.reader import Recording, read
from sbus.unix.address import parse_address

NUMBER_DIGITS = 16
KEYS = 200
BURST_SECONDS = 0.002
"""A paced publisher sends what is due, and sleeps this long."""
READY_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is published, `rate` messages per second; 0 for as many as the bus takes."""

    messages: int
    payload_bytes: int
    rate: int
    publishers: int
    """In one process; they publish in turn."""
    plain: bool
    """Whether the recorder does without the admin socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one load. CPU times are without the start."""

    published_per_second: float
    recorded: int
    recorded_per_second: float
    lost: int
    cpu_us_per_message: float
    bus_cpu_us_per_message: float
    written_bytes: int


def publish(address: str, load: Load) -> float:
    """Publish all messages; returns the seconds until the bus had accepted them."""
    filler = b"x" * (load.payload_bytes - NUMBER_DIGITS)
    packets = [
        b"MSG app/%d/state\0%016d%b" % (number % KEYS, number, filler)
        for number in range(load.messages)
    ]
    with ExitStack() as stack:
        socks = [
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            for _ in range(load.publishers)
        ]
        for sock in socks:
            sock.connect(parse_address(address).sockaddr())
        sends = [socks[number % load.publishers].send for number in range(load.messages)]
        begun = time.perf_counter()
        sent = 0
        while sent < load.messages:
            due = load.messages
            if load.rate:
                due = min(due, int((time.perf_counter() - begun) * load.rate) + 1)
            # The fastest loop there is: the publishers share their CPU with the bus.
            deque(map(call, sends[sent:due], packets[sent:due]), maxlen=0)
            sent = due
            if load.rate:
                time.sleep(BURST_SECONDS)
        for sock in socks:
            sock.send(b"CMSG !/cred/whoami")
            sock.recv(1000)
        return time.perf_counter() - begun


def _run(run: RunSettings, load: Load) -> Outcome:
    """One bus, one recorder, one load. Raises BenchmarkFailed if the recording is wrong."""
    usable = os.sched_getaffinity(0)
    bus_cpus, recorder_cpus = frozenset({min(usable)}), frozenset({max(usable)})
    with TemporaryDirectory(dir=run.directory) as recording:
        with replace(run, broker_cpus=bus_cpus).broker(1)() as server:
            command = [sys.executable, "-m", "sbus.cli.sbusctl", "-a", server.address, "record"]
            command += ["--plain", recording] if load.plain else [recording]
            with running("recorder", command, run.directory, recorder_cpus) as recorder:
                deadline = time.monotonic() + READY_SECONDS_MAX
                while "recording to" not in recorder.error_output():
                    if recorder.process.poll() is not None or time.monotonic() > deadline:
                        raise BenchmarkFailed(f"no recorder: {recorder.error_output()}")
                    time.sleep(0.05)
                pid = recorder.process.pid
                pids = [pid, *server.pids()]
                before_ns = proc.run_times_ns(pids)
                with pinned(bus_cpus), ProcessPoolExecutor(1, get_context("spawn")) as process:
                    seconds = process.submit(publish, server.address, load).result()
                # An idle recorder has received everything.
                _wait_idle(pid)
                cpu_ns = [now - before_ns[pid] for pid, now in proc.run_times_ns(pids).items()]
            if recorder.process.returncode:
                raise BenchmarkFailed(f"the recorder failed: {recorder.error_output()}")
        return _check(Path(recording), load, seconds, *cpu_ns)


def _wait_idle(pid: int) -> None:
    last, now = 0, proc.run_time_ns(pid)
    while now - last >= 15_000_000:
        time.sleep(0.3)
        last, now = now, proc.run_time_ns(pid)


def _check(directory: Path, load: Load, seconds: float, cpu_ns: int, *bus_cpu_ns: int) -> Outcome:
    """Read it all: the numbers must be consecutive, except for what GAP rows say is missing."""
    (table,) = Recording(directory).tables("messages").values()
    expected = list(range(load.publishers))
    recorded = lost = skipped = 0
    stamps: list[int] = []
    for piece in table.plan(table.earliest, table.end):
        for batch in read(piece, ["value", "lost", "timestamp"]):
            stamps += [batch["timestamp"][at].value for at in (0, batch.num_rows - 1)]
            for value, missing in zip(
                batch["value"].to_pylist(), batch["lost"].to_pylist(), strict=True
            ):
                if missing is not None:
                    lost += missing
                    continue
                recorded += 1
                number = int(value[:NUMBER_DIGITS])
                publisher = number % load.publishers
                skipped += (number - expected[publisher]) // load.publishers
                if number < expected[publisher] or skipped > lost:
                    raise BenchmarkFailed(f"message {number} instead of {expected[publisher]}")
                expected[publisher] = number + load.publishers
    if recorded + lost != load.messages:
        raise BenchmarkFailed(f"{recorded + lost} of {load.messages} messages are accounted for")
    return Outcome(
        published_per_second=load.messages / seconds,
        recorded=recorded,
        recorded_per_second=recorded * 1e6 / (max(stamps) - min(stamps)),
        lost=lost,
        cpu_us_per_message=cpu_ns / 1_000 / max(1, recorded),
        bus_cpu_us_per_message=sum(bus_cpu_ns) / 1_000 / load.messages,
        written_bytes=sum(path.stat().st_size for path in directory.rglob("*.arrows")),
    )


def measure(run: RunSettings, loads: Sequence[Load]) -> Result:
    outcomes = []
    for load in loads:
        outcomes.append(_run(run, load))
        per_second = outcomes[-1].recorded_per_second
        run.progress(f"{load.rate or 'unpaced'}: {per_second:,.0f}/s")
    return Result(
        name="recording",
        settings={
            "messages": loads[0].messages,
            "payload_bytes": loads[0].payload_bytes,
            "publishers": loads[0].publishers,
            "plain": loads[0].plain,
        },
        columns=(
            *("asked msg/s", "published/s", "recorded/s", "lost"),
            *("µs/msg", "bus µs/msg", "MB"),
        ),
        rows=[
            (
                f"{load.rate:,}" if load.rate else "all",
                f"{outcome.published_per_second:,.0f}",
                f"{outcome.recorded_per_second:,.0f}",
                f"{outcome.lost:,}",
                f"{outcome.cpu_us_per_message:.2f}",
                f"{outcome.bus_cpu_us_per_message:.2f}",
                f"{outcome.written_bytes / 1e6:.1f}",
            )
            for load, outcome in zip(loads, outcomes, strict=True)
        ],
        notes=["Every message was recorded in order, or counted by a GAP row."],
        samples={str(load.rate): outcome for load, outcome in zip(loads, outcomes, strict=True)},
    )
