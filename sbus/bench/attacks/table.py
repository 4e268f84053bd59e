"""The benchmark `attacks`: what each attack costs another user, against controls beside the bus.

The control uses as much of the processors as the attacking processes did. Where an attack costs
more than `CONTROL_FACTOR_MAX` of it, a second control also uses as much as the bus did: it shows
how much of that is due to busy processors.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from sbus.bench import BenchmarkFailed, proc
from sbus.bench.attacks.programs import ATTACKS
from sbus.bench.attacks.scene import Outcome, scene
from sbus.bench.report import Result, write_into_page
from sbus.bench.servers import RunSettings, Server

T = TypeVar("T")
PAGE, SECTION = "security.md", "attacks"
CONTROL_FACTOR_MAX = 3.0
CONNECT_MS_MAX = 250.0
WARM_UP_SECONDS = 0.2
REST_SECONDS, REST_PERCENT_MAX, REST_TRIES = 0.1, 10.0, 100
COLUMNS = ("attack, workers", "p50 µs", "p99 µs", "control", "×", "all CPU", "connect ms", "lost")


@dataclass(frozen=True)
class Sample:
    """One attack on one bus; `bus_percent` is what all processes of the bus used meanwhile."""

    attack: Outcome
    control: Outcome
    all_cpu_control: Outcome | None
    bus_percent: float

    @property
    def factor(self) -> float:
        return self.attack.p99_us / self.control.p99_us

    @property
    def all_cpu_factor(self) -> float:
        control = self.all_cpu_control or self.control
        return self.attack.p99_us / control.p99_us


Samples = Mapping[str, Sequence[Sample]]


def attacks(
    run: RunSettings, names: Sequence[str], workers: Sequence[int], seconds: float
) -> Result:
    """Every attack on a bus of its own, with each of these numbers of workers."""
    if os.geteuid() != 0:
        raise BenchmarkFailed("attackers and victim are other users, which takes root")
    cases = {f"{name}, {count}": (name, count) for count in workers for name in names}
    samples: dict[str, list[Sample]] = {}
    failures: list[str] = []
    for label, case, (name, count) in run.rounds(cases):
        try:
            sample = measure(run, name, count, seconds)
        except BenchmarkFailed as error:
            failures.append(f"{case} failed: {error}")
            continue
        samples.setdefault(case, []).append(sample)
        run.progress(f"{label}: p99 {sample.attack.p99_us:,} µs, {sample.factor:.1f} x control")
    rows = [row(case, samples[case]) for case in samples]
    return Result(
        name="attacks",
        settings={"seconds": seconds, "repetitions": run.repetitions},
        columns=COLUMNS,
        rows=rows,
        notes=[*failures, *beyond(samples)],
        samples=samples,
        succeeded=not failures and all(row[-1] == "0" for row in rows),
    )


def measure(run: RunSettings, name: str, workers: int, seconds: float) -> Sample:
    with run.broker(workers, options=ATTACKS[name].options)() as server:
        run.directory.chmod(0o711)
        Path(server.address).chmod(0o666)
        with scene(name, server.address, run.directory, max(2, workers)) as stage:
            stage.quiet(WARM_UP_SECONDS)
            attack, bus_percents = used_percents(server, lambda: stage.attack(seconds))
            stage.leave()
            wait_for_rest(server)
            own_percents = [attacker["cpu_percent"] for attacker in attack.attackers]
            control = stage.control(seconds, own_percents)
            all_cpu = None
            if attack.p99_us > CONTROL_FACTOR_MAX * control.p99_us:
                all_cpu = stage.control(seconds, [*own_percents, *bus_percents])
    return Sample(attack, control, all_cpu, sum(bus_percents))


def used_percents(server: Server, action: Callable[[], T]) -> tuple[T, list[int]]:
    """What an action does, and how much of a processor each process of the bus used for it that has
    not ended meanwhile: a closer may have to be killed."""
    before, begin = proc.run_times_ns(server.pids()), time.monotonic_ns()
    outcome = action()
    pids, wall = before.keys() & server.pids(), time.monotonic_ns() - begin
    after = proc.run_times_ns(pids)
    return outcome, [round(100 * (after[pid] - before[pid]) / wall) for pid in pids]


def wait_for_rest(server: Server) -> None:
    """Until the bus has cleaned up after clients that left."""
    for _ in range(REST_TRIES):
        _, percents = used_percents(server, lambda: time.sleep(REST_SECONDS))
        if sum(percents) <= REST_PERCENT_MAX:
            return
    raise BenchmarkFailed("the bus goes on working after the attackers have left")


# -- results ---------------------------------------------------------------------------------------
def row(case: str, samples: Sequence[Sample]) -> tuple[str, ...]:
    """Medians over the repetitions; of what is lost, the sum."""

    def shown(figure: Callable[[Sample], float], form: str = ",.0f") -> str:
        return format(median(map(figure, samples)), form)

    return (
        case,
        shown(lambda sample: sample.attack.messages["p50_us"]),
        shown(lambda sample: sample.attack.p99_us),
        shown(lambda sample: sample.control.p99_us),
        shown(lambda sample: sample.factor, ".1f"),
        shown(lambda sample: sample.all_cpu_factor, ".1f"),
        shown(lambda sample: sample.attack.connect_p99_ms, ".0f"),
        str(sum(sample.attack.lost for sample in samples)),
    )


def beyond(samples: Samples) -> list[str]:
    """A line for each case that costs more than is promised."""
    lines = []
    for case, those in samples.items():
        bus = median(sample.bus_percent for sample in those)
        factor = median(sample.factor for sample in those)
        connect_ms = median(sample.attack.connect_p99_ms for sample in those)
        if factor > CONTROL_FACTOR_MAX:
            lines.append(f"{case}: p99 {factor:.1f} x control; the bus used {bus:.0f} % CPU")
        if connect_ms > CONNECT_MS_MAX:
            lines.append(f"{case}: connect p99 {connect_ms:.0f} ms; the bus used {bus:.0f} % CPU")
    return lines


def update(docs: Path, result: Result) -> None:
    """Write the table into its page."""
    write_into_page(docs / PAGE, SECTION, result)
