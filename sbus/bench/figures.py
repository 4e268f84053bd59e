"""Figures from samples, and the text forms of figures: numbers and text in, numbers out."""

import math
import re
from collections.abc import Sequence

from sbus.bench import BenchmarkFailed

_REPORT = re.compile(r"\w+( \w+=[0-9]+)*\n?")


def percentile(samples: Sequence[int], percent: float) -> int:
    """The smallest sample that at least `percent` of all samples do not exceed (nearest rank)."""
    if not samples or not 0 < percent <= 100:
        raise ValueError("a percentile needs samples, and a rank above 0 and up to 100")
    rank = math.ceil(round(len(samples) * percent / 100, 9))
    return sorted(samples)[rank - 1]


def change_percent(value: float, base: float) -> float:
    """How far `value` lies above (or, negative, below) `base`, in percent of it."""
    return (value / base - 1) * 100


def outer_thirds(samples: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """The first and the last third, each rounded up so that neither is empty."""
    if not samples:
        raise ValueError("no samples to compare")
    length = math.ceil(len(samples) / 3)
    return samples[:length], samples[-length:]


def parse_report(line: str) -> tuple[str, dict[str, int]]:
    """A line of a C program, `word name=number ...`; raises BenchmarkFailed for any other."""
    if not _REPORT.fullmatch(line):
        raise BenchmarkFailed(f"a load generator printed {line!r}, which is no report")
    word, *pairs = line.split()
    fields = (pair.split("=") for pair in pairs)
    return word, {name: int(number) for name, number in fields}


def parse_cpus(text: str) -> frozenset[int]:
    """CPU numbers as in `0,2-3`; raises ValueError for anything else."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = int(first)
        high = int(last) if dash else low
        if low < 0 or high < low:
            raise ValueError(f"{part!r} is no range of CPUs")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def format_cpus(cpus: frozenset[int] | None) -> str:
    """As `parse_cpus` reads them, one by one; None is `any`."""
    return "any" if cpus is None else ",".join(str(cpu) for cpu in sorted(cpus))
