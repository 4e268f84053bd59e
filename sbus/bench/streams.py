"""One measurement of CPU per delivered message, and the repetition of several in turn.

CPU of every process of the server, between two moments at which nothing is under way: after
set-up and a warm-up, and when every subscriber has every message. This module does not know which
servers and which traffic make up a benchmark.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sbus.bench import proc
from sbus.bench.bystanders import Bystanders, standing_by
from sbus.bench.failures import BenchmarkFailed
from sbus.bench.programs import generator
from sbus.bench.servers import Server, Start
from sbus.limits import Limits

WINDOW_MESSAGES_MAX = 8_192
WINDOW_MESSAGES_MIN = 32
WARM_UP_FRACTION = 10
PHASE_SECONDS = 60.0
DELIVERIES_PER_SECOND_MIN = 5_000


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What is sent, and who is there; `fillers` is where idle connections go (see peer.h)."""

    messages: int
    size_bytes: int
    group: str = "m"
    """A letter: what this group publishes is for its own subscribers."""
    publishers: int = 1
    subscribers: int = 1
    choices: tuple[str, ...] = ()
    """Control keys that every subscriber sends first."""
    keys: int = 16
    """Different keys in turn; 0: a new one in each message."""
    fillers: str = "none"
    window_messages_max: int = WINDOW_MESSAGES_MAX
    bystanders: Bystanders | None = None

    @property
    def window_messages(self) -> int:
        """How far publishers may run ahead: half of what a backlog holds, so none overflows."""
        fitting = Limits().backlog_bytes_max // 2 // self.size_bytes
        return max(WINDOW_MESSAGES_MIN, min(self.window_messages_max, fitting))

    @property
    def seconds_max(self) -> float:
        """For all messages to arrive."""
        return PHASE_SECONDS + self.messages * self.subscribers / DELIVERIES_PER_SECOND_MIN

    def arguments(self, address: str) -> tuple[object, ...]:
        """Of `stream`."""
        return (
            address,
            self.group,
            self.publishers,
            self.subscribers,
            self.size_bytes,
            self.keys,
            self.window_messages,
            self.fillers,
            *self.choices,
        )


@dataclass(frozen=True)
class Sample:
    """One measurement; `waits` counts how often the publisher was held back by its window."""

    deliveries: int
    wall_ns: int
    waits: int
    cpu_ns: tuple[int, ...]
    """Of each process of the server, the front first."""

    @property
    def cpu_us_per_delivery(self) -> float:
        return sum(self.cpu_ns) / self.deliveries / 1_000

    @property
    def deliveries_per_second(self) -> float:
        return self.deliveries * 1e9 / self.wall_ns

    @property
    def busy_percent(self) -> float:
        """CPU per elapsed time: well below 100 means that the load did not keep it busy."""
        return sum(self.cpu_ns) / self.wall_ns * 100


def measure(
    server: Server, traffic: Traffic, directory: Path, load_cpus: frozenset[int] | None
) -> Sample:
    """Warm up, then measure once; raises BenchmarkFailed when one message is lost or altered."""
    arguments, seconds = traffic.arguments(server.address), traffic.seconds_max
    with contextlib.ExitStack() as stack:
        load = stack.enter_context(generator("stream", arguments, directory, load_cpus))
        if traffic.bystanders is not None:
            stack.enter_context(standing_by(server.address, traffic.bystanders))
        load.ask(f"go {max(1, traffic.messages // WARM_UP_FRACTION)}", "done", seconds)
        pids = server.pids()
        before = proc.run_times_ns(pids)
        done = load.ask(f"go {traffic.messages}", "done", seconds)
        after = proc.run_times_ns(pids)
    expected = traffic.messages * traffic.subscribers
    if done["deliveries"] != expected:
        raise BenchmarkFailed(f"{done['deliveries']} deliveries instead of {expected}")
    cpu_ns = tuple(after[pid] - before[pid] for pid in pids)
    return Sample(done["deliveries"], done["wall_ns"], done["waits"], cpu_ns)


@dataclass(frozen=True)
class Case:
    """One line of a benchmark: a server and the traffic through it."""

    start: Start
    traffic: Traffic


def measure_in_turn(
    cases: Mapping[str, Case],
    repetitions: int,
    directory: Path,
    load_cpus: frozenset[int] | None,
    progress: Callable[[str], None],
) -> dict[str, Sequence[Sample]]:
    """Every case once, then every case again, so that what disturbs the machine disturbs all.

    Each measurement has a server of its own. The n-th samples of two cases are a pair.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    for repetition in range(repetitions):
        for name, case in cases.items():
            with case.start() as server:
                sample = measure(server, case.traffic, directory, load_cpus)
            samples[name].append(sample)
            progress(
                f"{repetition + 1}/{repetitions} {name}: {sample.cpu_us_per_delivery:.2f} µs, "
                f"{sample.deliveries_per_second:,.0f}/s"
            )
    return dict(samples)
