"""The benchmark of `block`: what publishers suffer from others who are held back beside them.

Two groups on a bus of two workers, the publishers of each on a worker of their own. All are one
user's, so that whoever publishes in group 2 has to look whether a stalled client matches. On one
and the same bus group 2 is measured while group 1 is silent, while both publish, and while the
subscriber of group 1, which chose to block, does not read; then all of it again. Then the next bus,
whose group 1 holds its publishers back in another way.

This module does not know how publishers are held back.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from sbus.bench import proc
from sbus.bench.figures import median
from sbus.bench.programs import Child, generator
from sbus.bench.report import Result
from sbus.bench.servers import Server
from sbus.bench.streams import WARM_UP_FRACTION, Traffic
from sbus.bench.terms import Terms

STATES = ("quiet", "both", "held")
BACKLOG_MESSAGES = 2_048
WINDOW_MESSAGES = 512
"""Of group 2: fewer than its subscriber's socket takes, at the usual sizes. With a backlog now and
then a message would cost twice as much now and then."""
NEVER_SPENT = "user_held_seconds_max=3600"
BOTH_FACTOR = 2
"""Group 1 publishes so much more when both do: it has to go on for longer than group 2."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How and where the subscriber of group 1 holds its publishers back."""

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
class Visit:
    """Group 2 in one measurement; and for how long group 1 was held, with how many messages."""

    deliveries: int
    wall_ns: int
    worker_ns: int
    """CPU of the worker of group 2."""
    rest_ns: int
    """CPU of all other processes of the bus."""
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
    """A running `stream` and what it does."""

    load: Child
    traffic: Traffic

    def ask(self, command: str, word: str) -> dict[str, int]:
        return self.load.ask(command, word, self.traffic.seconds_max)


Visits = Mapping[str, Sequence[Visit]]


def block(terms: Terms, traffic: Traffic) -> Result:
    """`traffic` is group 2's; group 1 has as many publishers, and one subscriber."""
    traffic = replace(traffic, fillers=OWN_WORKER, window_messages_max=WINDOW_MESSAGES)
    visits: dict[str, list[Visit]] = {}
    for name, way in WAYS.items():
        for state, visit in measure(terms, traffic, name, way):
            visits.setdefault(f"{name}, {state}", []).append(visit)
    return Result(
        name="block",
        machine=proc.this_machine(),
        settings={
            "workers": 2,
            "messages": traffic.messages,
            "publishers": traffic.publishers,
            "subscribers": traffic.subscribers,
            "size": traffic.size_bytes,
            **terms.settings(),
        },
        columns=("group 1", "2: msg/s", "µs/msg", "rest %", "msg/s vs quiet", "µs vs quiet"),
        rows=rows(visits),
        notes=[held_line(name, visits[f"{name}, held"]) for name in WAYS],
        samples={case: [asdict(visit) for visit in those] for case, those in visits.items()},
    )


def measure(terms: Terms, traffic: Traffic, name: str, way: Way) -> list[tuple[str, Visit]]:
    """Every state as often as the terms say, in turn, on one bus."""
    other = replace(
        traffic,
        messages=traffic.messages * BOTH_FACTOR,
        group="h",
        subscribers=1,
        choices=way.choices,
        fillers=way.fillers,
        window_messages_max=4 * BACKLOG_MESSAGES,
    )
    visits = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(terms.broker(2, NEVER_SPENT, *way.limits)())
        flowing, holding = (
            Group(
                stack.enter_context(
                    generator(
                        "stream", its.arguments(server.address), terms.directory, terms.load_cpus
                    )
                ),
                its,
            )
            for its in (traffic, other)
        )
        worker = busiest(server, flowing)
        for repetition in range(terms.repetitions):
            for at in range(len(STATES)):
                state = STATES[(repetition + at) % len(STATES)]
                visit = visit_in(state, server, worker, flowing, holding)
                visits.append((state, visit))
                terms.progress(
                    f"{repetition + 1}/{terms.repetitions} {name}, {state}: "
                    f"{visit.deliveries_per_second:,.0f}/s, {visit.cpu_us_per_delivery:.2f} µs"
                )
    return visits


def busiest(server: Server, flowing: Group) -> int:
    """The pid of group 2's worker, which does the work while group 2 alone warms up."""
    pids = server.pids()
    before = proc.run_times_ns(pids)
    flowing.ask(f"go {max(1, flowing.traffic.messages // WARM_UP_FRACTION)}", "done")
    after = proc.run_times_ns(pids)
    return max(pids, key=lambda pid: after[pid] - before[pid])


def visit_in(state: str, server: Server, worker: int, flowing: Group, holding: Group) -> Visit:
    """Measure group 2 in one state of group 1, which has then all it is due, and is silent."""
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
    return Visit(
        deliveries=done["deliveries"],
        wall_ns=done["wall_ns"],
        worker_ns=after[worker] - before[worker],
        rest_ns=sum(after[pid] - before[pid] for pid in pids if pid != worker),
        held_ns=freed.get("held_ns", 0),
        held_messages=held.get("messages", 0),
    )


def rows(visits: Visits) -> list[tuple[str, ...]]:
    """Medians, and medians of the ratios to the quiet measurement of the same repetition."""
    table: list[tuple[str, ...]] = []
    for case, those in visits.items():
        way, _, state = case.rpartition(", ")
        pairs = list(zip(those, visits[f"{way}, quiet"], strict=True))
        rates = [v.deliveries_per_second / quiet.deliveries_per_second for v, quiet in pairs]
        costs = [v.cpu_us_per_delivery / quiet.cpu_us_per_delivery for v, quiet in pairs]
        table.append(
            (
                case,
                f"{median([v.deliveries_per_second for v in those]):,.0f}",
                f"{median([v.cpu_us_per_delivery for v in those]):.2f}",
                f"{median([v.rest_percent for v in those]):.1f}",
                "" if state == "quiet" else f"{median(rates):.3f}",
                "" if state == "quiet" else f"{median(costs):.3f}",
            )
        )
    return table


def held_line(way: str, visits: Sequence[Visit]) -> str:
    """For how long group 1 was held; that it had everything then was made sure of."""
    seconds = [visit.held_ns / 1e9 for visit in visits]
    return (
        f"{way}: held {len(visits)} times, {min(seconds):.2f} to {max(seconds):.2f} s; then all "
        f"{sum(visit.held_messages for visit in visits):,} messages came, in order."
    )
