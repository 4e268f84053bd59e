"""The benchmark of `block`: what publishers suffer from others who are held beside them.

Two groups on a bus of two workers; the publishers of each are on a worker of their own. One user
has all of them, so every publisher of group 2 has to look whether a stalled client matches. On one
and the same bus group 2 is measured while group 1 is silent, while both publish, and while the
subscriber of group 1, which chose to block, does not read. The next bus has a group 1 that holds
its publishers in another way.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from sbus.bench import proc
from sbus.bench.programs import Child
from sbus.bench.report import Result
from sbus.bench.servers import RunSettings, Server
from sbus.bench.traffic import WARM_UP_FRACTION, Traffic

STATES = ("quiet", "both", "held")
BACKLOG_MESSAGES = 2_048
WINDOW_MESSAGES = 512
"""Of group 2: fewer than its subscriber's socket takes, at the usual sizes. A backlog, which comes
and goes, would make some messages cost twice as much."""
NEVER_SPENT = "user_held_seconds_max=3600"
BOTH_FACTOR = 2
"""Group 1 publishes so much more when both do: it has to go on for longer than group 2."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How and where the subscriber of group 1 holds its publishers."""

    choices: tuple[str, ...]
    fillers: str
    limits: tuple[str, ...] = ()


SOFT = ("blocking/soft/block",)
HARD = ("blocking/soft/queue", "blocking/hard/block")
OWN_WORKER, OTHER_WORKER = "before", "none"
WAYS = {
    "soft": Way(choices=SOFT, fillers=OWN_WORKER),
    "soft, on 2's worker": Way(choices=SOFT, fillers=OTHER_WORKER),
    "hard": Way(
        choices=HARD, fillers=OWN_WORKER, limits=(f"backlog_messages_max={BACKLOG_MESSAGES}",)
    ),
}


@dataclass(frozen=True, kw_only=True)
class GroupSample:
    """Group 2 in one measurement; how long group 1 was held, and how many messages waited."""

    deliveries: int
    wall_ns: int
    worker_ns: int
    """CPU time of the worker of group 2."""
    rest_ns: int
    """CPU time of all other processes of the bus."""
    held_ns: int = 0
    held_messages: int = 0

    @property
    def deliveries_per_second(self) -> float:
        return self.deliveries * 1e9 / self.wall_ns

    @property
    def cpu_us_per_delivery(self) -> float:
        return self.worker_ns / self.deliveries / 1_000

    @property
    def rest_percent(self) -> float:
        return self.rest_ns / self.wall_ns * 100


@dataclass(frozen=True)
class Group:
    """A running C program `stream`, and what it does."""

    load: Child
    traffic: Traffic

    def ask(self, command: str, word: str) -> dict[str, int]:
        return self.load.ask(command, word, self.traffic.seconds_max)


Samples = Mapping[str, Sequence[GroupSample]]


def block(run: RunSettings, traffic: Traffic) -> Result:
    """`traffic` is group 2's; group 1 has as many publishers."""
    traffic = replace(traffic, fillers=OWN_WORKER, window_messages_max=WINDOW_MESSAGES)
    samples: dict[str, list[GroupSample]] = {}
    for name, way in WAYS.items():
        for state, sample in measure(run, traffic, name, way):
            samples.setdefault(f"{name}, {state}", []).append(sample)
    return Result(
        name="block",
        settings={
            "workers": 2,
            "messages": traffic.messages,
            "publishers": traffic.publishers,
            "size": traffic.size_bytes,
            **run.shown(),
        },
        columns=("group 1", "2: msg/s", "µs/msg", "rest %", "msg/s vs quiet", "µs vs quiet"),
        rows=[group_row(case, samples) for case in samples],
        notes=[held_line(name, samples[f"{name}, held"]) for name in WAYS],
        samples=samples,
    )


def measure(
    run: RunSettings, traffic: Traffic, name: str, way: Way
) -> list[tuple[str, GroupSample]]:
    """Every state in turn, as often as the settings say, on one bus."""
    other = replace(
        traffic,
        messages=traffic.messages * BOTH_FACTOR,
        group="h",
        choices=way.choices,
        fillers=way.fillers,
        window_messages_max=4 * BACKLOG_MESSAGES,
    )
    samples = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(run.broker(2, NEVER_SPENT, *way.limits)())
        flowing, holding = (
            Group(stack.enter_context(run.load("stream", *its.arguments(server.address))), its)
            for its in (traffic, other)
        )
        worker = busiest(server, flowing)
        for repetition in range(run.repetitions):
            for at in range(len(STATES)):
                state = STATES[(repetition + at) % len(STATES)]
                sample = measure_in(state, server, worker, flowing, holding)
                samples.append((state, sample))
                run.progress(
                    f"{repetition + 1}/{run.repetitions} {name}, {state}: "
                    f"{sample.deliveries_per_second:,.0f}/s, {sample.cpu_us_per_delivery:.2f} µs"
                )
    return samples


def busiest(server: Server, flowing: Group) -> int:
    """The pid of group 2's worker, which does the work while group 2 alone warms up."""
    pids = server.pids()
    before = proc.run_times_ns(pids)
    flowing.ask(f"go {max(1, flowing.traffic.messages // WARM_UP_FRACTION)}", "done")
    after = proc.run_times_ns(pids)
    return max(pids, key=lambda pid: after[pid] - before[pid])


def measure_in(
    state: str, server: Server, worker: int, flowing: Group, holding: Group
) -> GroupSample:
    """Measure group 2 in one state of group 1; in the end group 1 has everything and is silent."""
    held: dict[str, int] = {}
    freed: dict[str, int] = {}
    if state == "both":
        holding.load.tell(f"go {holding.traffic.messages}")
    elif state == "held":
        held = holding.ask("hold", "held")
    pids = server.pids()
    before = proc.run_times_ns(pids)
    done = flowing.ask(f"go {flowing.traffic.messages}", "done")
    after = proc.run_times_ns(pids)
    if state == "both":
        holding.load.wait_for_report("done", holding.traffic.seconds_max)
    elif state == "held":
        freed = holding.ask("release", "done")
    return GroupSample(
        deliveries=done["deliveries"],
        wall_ns=done["wall_ns"],
        worker_ns=after[worker] - before[worker],
        rest_ns=sum(after[pid] - before[pid] for pid in pids if pid != worker),
        held_ns=freed.get("held_ns", 0),
        held_messages=held.get("messages", 0),
    )


def group_row(case: str, samples: Samples) -> tuple[str, ...]:
    """Medians, and medians of the ratios to the quiet measurement of the same repetition."""
    those = samples[case]
    way, _, state = case.rpartition(", ")
    row = (
        case,
        f"{median(sample.deliveries_per_second for sample in those):,.0f}",
        f"{median(sample.cpu_us_per_delivery for sample in those):.2f}",
        f"{median(sample.rest_percent for sample in those):.1f}",
    )
    if state == "quiet":
        return (*row, "", "")
    pairs = list(zip(those, samples[f"{way}, quiet"], strict=True))
    rates = [it.deliveries_per_second / quiet.deliveries_per_second for it, quiet in pairs]
    costs = [it.cpu_us_per_delivery / quiet.cpu_us_per_delivery for it, quiet in pairs]
    return (*row, f"{median(rates):.3f}", f"{median(costs):.3f}")


def held_line(way: str, samples: Sequence[GroupSample]) -> str:
    """How long group 1 was held; each `release` has checked that everything arrived."""
    seconds = [sample.held_ns / 1e9 for sample in samples]
    return (
        f"{way}: held {len(samples)} times, {min(seconds):.2f} to {max(seconds):.2f} s; then all "
        f"{sum(sample.held_messages for sample in samples):,} messages came, in order."
    )
