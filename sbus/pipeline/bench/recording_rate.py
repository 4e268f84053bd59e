"""How fast a live bus is recorded, and whether anything is lost.

A bus with one worker and a publisher share one CPU; the recorder has another. The publisher sends
numbered messages, as fast as it can or at a given rate, and never waits: what the recorder cannot
keep up with is queued by the bus and finally dropped. Afterwards the recording is read: all
messages must be there, in order, or be counted by a GAP row.
"""

import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from sbus.bench import BenchmarkFailed, proc
from sbus.bench.figures import format_cpus
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one load. The recorder's CPU time is without its start."""

    published_per_second: float
    recorded: int
    recorded_per_second: float
    lost: int
    gaps: int
    cpu_ns: int
    written_bytes: int

    @property
    def cpu_us_per_message(self) -> float:
        return self.cpu_ns / 1_000 / max(1, self.recorded)

    @property
    def busy_percent(self) -> float:
        return self.cpu_us_per_message * self.recorded_per_second / 10_000


def publish(address: str, load: Load) -> float:
    """Publish all messages; returns the seconds until the bus had accepted them."""
    filler = b"x" * (load.payload_bytes - NUMBER_DIGITS)
    packets = [
        b"MSG app/%d/state\0%016d%b" % (number % KEYS, number, filler)
        for number in range(load.messages)
    ]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(parse_address(address).sockaddr())
        begun = time.perf_counter()
        sent = 0
        while sent < load.messages:
            due = load.messages
            if load.rate:
                due = min(due, int((time.perf_counter() - begun) * load.rate) + 1)
            # The fastest loop there is: the publisher shares its CPU with the bus.
            deque(map(sock.send, packets[sent:due]), maxlen=0)
            sent = due
            if load.rate:
                time.sleep(BURST_SECONDS)
        sock.send(b"CMSG !/cred/whoami")
        sock.recv(1000)
        return time.perf_counter() - begun


def _run(
    load: Load, where: Path, bus_cpus: frozenset[int] | None, recorder_cpus: frozenset[int] | None
) -> Outcome:
    """One bus, one recorder, one load. Raises BenchmarkFailed if the recording is wrong."""
    with tempfile.TemporaryDirectory(prefix="sbus-bench-", dir=where) as name:
        directory = Path(name)
        recording = directory / "recording"
        run = RunSettings(directory=directory, broker_cpus=bus_cpus)
        with run.broker(1)() as server:
            command = [sys.executable, "-m", "sbus.cli.sbusctl", "-a", server.address, "record"]
            command += ["--plain", str(recording)]
            with running("recorder", command, directory, recorder_cpus) as recorder:
                deadline = time.monotonic() + READY_SECONDS_MAX
                while "recording to" not in recorder.error_output():
                    if recorder.process.poll() is not None or time.monotonic() > deadline:
                        raise BenchmarkFailed(f"no recorder: {recorder.error_output()}")
                    time.sleep(0.05)
                pid = recorder.process.pid
                before = proc.run_times_ns([pid])[pid]
                with pinned(bus_cpus), ProcessPoolExecutor(1) as elsewhere:
                    seconds = elsewhere.submit(publish, server.address, load).result()
                # An idle recorder has received everything.
                cpu_ns = _wait_idle(pid) - before
            if recorder.process.returncode:
                raise BenchmarkFailed(f"the recorder failed: {recorder.error_output()}")
        return _check(recording, load, seconds, cpu_ns)


def _wait_idle(pid: int) -> int:
    """The CPU time of the process once it is idle."""
    last = proc.run_times_ns([pid])[pid]
    while True:
        time.sleep(0.3)
        now = proc.run_times_ns([pid])[pid]
        if now - last < 15_000_000:
            return now
        last = now


def _check(directory: Path, load: Load, seconds: float, cpu_ns: int) -> Outcome:
    """Read it all: the numbers must be consecutive, except for what GAP rows say is missing."""
    (table,) = Recording(directory).tables("messages").values()
    expected = lost = gaps = 0
    stamps: list[int] = []
    for piece in table.plan(table.earliest, table.end):
        for batch in read(piece, ["value", "lost", "timestamp"]):
            stamps += [batch["timestamp"][at].value for at in (0, batch.num_rows - 1)]
            for value, missing in zip(
                batch["value"].to_pylist(), batch["lost"].to_pylist(), strict=True
            ):
                if missing is not None:
                    gaps += 1
                    lost += missing
                elif int(value[:NUMBER_DIGITS]) != expected:
                    raise BenchmarkFailed(f"message {value[:NUMBER_DIGITS]} instead of {expected}")
                expected += 1 if missing is None else missing
    if expected != load.messages:
        raise BenchmarkFailed(f"{expected} of {load.messages} messages are accounted for")
    return Outcome(
        published_per_second=load.messages / seconds,
        recorded=expected - lost,
        recorded_per_second=(expected - lost) * 1e6 / (max(stamps) - min(stamps)),
        lost=lost,
        gaps=gaps,
        cpu_ns=cpu_ns,
        written_bytes=sum(path.stat().st_size for path in directory.rglob("*.arrows")),
    )


def measure(
    loads: Sequence[Load],
    where: Path,
    bus_cpus: frozenset[int] | None,
    recorder_cpus: frozenset[int] | None,
) -> Result:
    outcomes = []
    for load in loads:
        outcome = _run(load, where, bus_cpus, recorder_cpus)
        outcomes.append(outcome)
        click.echo(f"{load.rate or 'unpaced'}: {outcome.recorded_per_second:,.0f}/s", err=True)
    return Result(
        name="record",
        machine=proc.this_machine(),
        settings={
            "messages": loads[0].messages,
            "payload_bytes": loads[0].payload_bytes,
            "bus_cpu": format_cpus(bus_cpus),
            "recorder_cpu": format_cpus(recorder_cpus),
            "directory": str(where),
        },
        columns=("asked msg/s", "published/s", "recorded/s", "lost", "µs/msg", "busy %", "MB"),
        rows=[
            (
                f"{load.rate:,}" if load.rate else "all",
                f"{outcome.published_per_second:,.0f}",
                f"{outcome.recorded_per_second:,.0f}",
                f"{outcome.lost:,}",
                f"{outcome.cpu_us_per_message:.2f}",
                f"{outcome.busy_percent:.0f}",
                f"{outcome.written_bytes / 1e6:.1f}",
            )
            for load, outcome in zip(loads, outcomes, strict=True)
        ],
        notes=["Every message was recorded in order, or counted by a GAP row."],
        samples={str(load.rate): asdict(out) for load, out in zip(loads, outcomes, strict=True)},
    )
