"""What this host is doing now, as messages: load, memory, processors, network, processes.

Each source is a generator of rounds, which are lists of (key, payload); the caller decides when the
next round is due. Rates are between two rounds, so the first round has none. Keys are
`host/NAME/...`; payloads are text for people, with the unit.
"""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
TOP_PROCESSES = 5
"""Processes reported in a round: those that used the most CPU time since the last one."""
SEGMENT_BYTES_MAX = 64
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:+-")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Message = tuple[bytes, bytes]


def segment(name: bytes) -> bytes:
    """`name` as one segment of a key: without separators, not reserved, not empty."""
    return bytes(b if b in _PLAIN else ord("_") for b in name[:SEGMENT_BYTES_MAX]) or b"_"


def host_name() -> bytes:
    return segment(os.uname().nodename.partition(".")[0].encode())


def machine(host: bytes, proc: Path = PROC) -> Iterator[list[Message]]:
    """Load, memory, each processor and each network interface."""
    processors_before: dict[str, list[int]] = {}
    traffic_before: dict[str, tuple[int, int]] = {}
    at_before = time.monotonic()
    while True:
        processors = processor_ticks((proc / "stat").read_text())
        traffic = interface_bytes((proc / "net/dev").read_text())
        at = time.monotonic()
        found = [
            *load((proc / "loadavg").read_text()),
            *memory((proc / "meminfo").read_text()),
            *processor_shares(processors_before, processors),
            *traffic_rates(traffic_before, traffic, at - at_before),
        ]
        yield [(b"host/" + host + b"/" + key, payload) for key, payload in found]
        processors_before, traffic_before, at_before = processors, traffic, at


def load(text: str) -> list[Message]:
    """From /proc/loadavg."""
    one, five, fifteen, entities, _ = text.split()
    running = entities.partition("/")[0]
    values = {b"1min": one, b"5min": five, b"15min": fifteen, b"running": running}
    return [(b"load/" + name, value.encode()) for name, value in values.items()]


def memory(text: str) -> list[Message]:
    """From /proc/meminfo, in MiB."""
    kib = {name: int(value) for name, value in re.findall(r"(\S+): +(\d+)", text)}
    values = {
        b"available": kib["MemAvailable"],
        b"used": kib["MemTotal"] - kib["MemAvailable"],
        b"cached": kib["Cached"],
        b"dirty": kib["Dirty"],
        b"swap_used": kib["SwapTotal"] - kib["SwapFree"],
    }
    return [(b"memory/" + name, b"%.1f MiB" % (value / 1024)) for name, value in values.items()]


def processor_ticks(text: str) -> dict[str, list[int]]:
    """From /proc/stat: processor number to ticks (user, nice, system, idle, iowait, ...)."""
    lines = re.findall(r"^cpu(\d+) (.*)", text, re.MULTILINE)
    return {number: [int(ticks) for ticks in rest.split()[:8]] for number, rest in lines}


def processor_shares(
    before: dict[str, list[int]], after: dict[str, list[int]]
) -> Iterator[Message]:
    """How each processor's time was used in between; nothing for a processor that is new."""
    for name in filter(before.__contains__, after):
        spent = [new - old for old, new in zip(before[name], after[name], strict=True)]
        user, nice, system, idle, iowait, irq, softirq, _ = spent
        total = sum(spent)
        if total <= 0:
            continue
        values = {
            b"user": user + nice,
            b"system": system + irq + softirq,
            b"iowait": iowait,
            b"busy": total - idle - iowait,
        }
        for what, ticks in values.items():
            yield b"cpu/" + name.encode() + b"/" + what, b"%.0f %%" % (100 * ticks / total)


def interface_bytes(text: str) -> dict[str, tuple[int, int]]:
    """From /proc/net/dev: interface to bytes received and sent."""
    lines = re.findall(r"^ *(\S+):(.*)", text, re.MULTILINE)
    counters = {name: rest.split() for name, rest in lines}
    return {name: (int(fields[0]), int(fields[8])) for name, fields in counters.items()}


def traffic_rates(
    before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]], seconds: float
) -> Iterator[Message]:
    """What went through each interface in between, in KiB/s."""
    for name in filter(before.__contains__, after):
        prefix = b"net/" + segment(name.encode()) + b"/"
        for what, old, new in zip((b"rx", b"tx"), before[name], after[name], strict=True):
            yield prefix + what, b"%.1f KiB/s" % ((new - old) / 1024 / seconds)


def processes(host: bytes, proc: Path = PROC) -> Iterator[list[Message]]:
    """The processes that used the most CPU time since the last round."""
    before: dict[int, int] = {}
    at_before = time.monotonic()
    while True:
        used = {pid: (ticks, name) for pid, ticks, name in process_ticks(proc)}
        at = time.monotonic()
        spent = [
            (ticks - before[pid], pid, name) for pid, (ticks, name) in used.items() if pid in before
        ]
        spent.sort(reverse=True)
        yield [
            (
                b"host/%s/process/%d/cpu" % (host, pid),
                b"%.0f %% %s" % (100 * ticks / _TICKS_PER_SECOND / (at - at_before), name),
            )
            for ticks, pid, name in spent[:TOP_PROCESSES]
            if ticks > 0
        ]
        before, at_before = {pid: ticks for pid, (ticks, _) in used.items()}, at


def process_ticks(proc: Path) -> Iterator[tuple[int, int, bytes]]:
    """From /proc/PID/stat of every process: its id, ticks used so far, and its program's name."""
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or not ours to see
        # The name is in parentheses, and may itself contain any byte, also parentheses.
        name = stat[stat.index(b"(") + 1 : stat.rindex(b")")]
        fields = stat[stat.rindex(b")") + 2 :].split()
        yield int(entry.name), int(fields[11]) + int(fields[12]), name
