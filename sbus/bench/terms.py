"""The terms of a run: where things are, which CPUs they get, how often everything is repeated.

This module does not know any benchmark.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sbus.bench.figures import format_cpus
from sbus.bench.servers import PACE_LIFTED, Start, broker, relay
from sbus.bench.streams import Case, Sample, measure_in_turn


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The same for every benchmark; None for CPUs: any."""

    directory: Path
    """Holds the compiled programs, and everything that a run leaves behind."""
    repetitions: int
    broker_cpus: frozenset[int] | None
    load_cpus: frozenset[int] | None
    progress: Callable[[str], None]
    """Told a line now and then, for whoever waits."""
    limits: Sequence[str] = (PACE_LIFTED,)
    """Of every broker, `NAME=VALUE` each."""

    def settings(self) -> dict[str, str | int | float]:
        """For the head of a result."""
        return {
            "repetitions": self.repetitions,
            "broker_cpu": format_cpus(self.broker_cpus),
            "load_cpu": format_cpus(self.load_cpus),
        }

    def relay(self, mode: str) -> Start:
        return relay(self.directory, mode, self.broker_cpus)

    def broker(self, workers: int, *more_limits: str) -> Start:
        return broker(self.directory, workers, self.broker_cpus, (*self.limits, *more_limits))

    def measure(self, cases: Mapping[str, Case]) -> dict[str, Sequence[Sample]]:
        """All cases in turn, as often as the terms say."""
        return measure_in_turn(
            cases, self.repetitions, self.directory, self.load_cpus, self.progress
        )
