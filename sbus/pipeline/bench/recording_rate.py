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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sbus.bench import BenchmarkFailed, proc
from sbus.bench.programs import pinned, running
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
class Places:
    """The CPUs of the bus and the publisher, that of the recorder, and the disk."""

    bus_cpus: frozenset[int]
    recorder_cpus: frozenset[int]
    directory: Path


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


def measure(load: Load, places: Places) -> str:
    """One bus, one recorder, one load: the figures. Raises BenchmarkFailed if the recording is
    wrong."""
    with tempfile.TemporaryDirectory(prefix="sbus-bench-", dir=places.directory) as name:
        directory = Path(name)
        recording = directory / "recording"
        run = RunSettings(directory=directory, broker_cpus=places.bus_cpus)
        with run.broker(1)() as server:
            command = [sys.executable, "-m", "sbus.cli.sbusctl", "-a", server.address, "record"]
            command += ["--plain", str(recording)]
            with running("recorder", command, directory, places.recorder_cpus) as recorder:
                deadline = time.monotonic() + READY_SECONDS_MAX
                while "recording to" not in recorder.error_output():
                    if recorder.process.poll() is not None or time.monotonic() > deadline:
                        raise BenchmarkFailed(f"no recorder: {recorder.error_output()}")
                    time.sleep(0.05)
                pid = recorder.process.pid
                before = proc.run_times_ns([pid])[pid]
                with pinned(places.bus_cpus), ProcessPoolExecutor(1) as elsewhere:
                    seconds = elsewhere.submit(publish, server.address, load).result()
                # An idle recorder has received everything.
                cpu_ns = _wait_idle(pid) - before
            if recorder.process.returncode:
                raise BenchmarkFailed(f"the recorder failed: {recorder.error_output()}")
        return _figures(recording, load, seconds, cpu_ns)


def _wait_idle(pid: int) -> int:
    """The CPU time of the process once it is idle."""
    last = proc.run_times_ns([pid])[pid]
    while True:
        time.sleep(0.3)
        now = proc.run_times_ns([pid])[pid]
        if now - last < 15_000_000:
            return now
        last = now


def _figures(directory: Path, load: Load, seconds: float, cpu_ns: int) -> str:
    """Read it all: the numbers must be consecutive, except for what GAP rows say is missing."""
    (table,) = Recording(directory).tables("messages").values()
    expected = lost = 0
    stamps: list[int] = []
    for piece in table.plan(table.earliest, table.end):
        for batch in read(piece, ["value", "lost", "timestamp"]):
            stamps += [batch["timestamp"][at].value for at in (0, batch.num_rows - 1)]
            for value, missing in zip(
                batch["value"].to_pylist(), batch["lost"].to_pylist(), strict=True
            ):
                if missing is not None:
                    lost += missing
                elif int(value[:NUMBER_DIGITS]) != expected:
                    raise BenchmarkFailed(f"message {value[:NUMBER_DIGITS]} instead of {expected}")
                expected += 1 if missing is None else missing
    if expected != load.messages:
        raise BenchmarkFailed(f"{expected} of {load.messages} messages are accounted for")
    recorded = expected - lost
    recorded_seconds = (max(stamps) - min(stamps)) / 1e6
    written_bytes = sum(path.stat().st_size for path in directory.rglob("*.arrows"))
    return (
        f"asked {load.rate:,}, published {load.messages / seconds:,.0f}/s, "
        f"recorded {recorded / recorded_seconds:,.0f}/s, lost {lost:,}, "
        f"recorder {cpu_ns / 1_000 / recorded:.2f} µs a message, "
        f"{cpu_ns / 1e7 / recorded_seconds:.0f} % busy, {written_bytes / 1e6:.1f} MB"
    )
