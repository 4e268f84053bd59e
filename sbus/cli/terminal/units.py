"""Numbers for people, with three significant digits and a unit; and durations that people write.

There is no space between number and unit, so that `awk` sees one word and `sort -h` knows the
order. `--json` has the exact figures.
"""

import re
from collections.abc import Iterable

from sbus.protocol.admin_results import Latency

_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
EXACT_BELOW = 10_000
"""Counts up to four digits are shown as they are."""
UNKNOWN = "-"


def count(number: float) -> str:
    """12345 is `12.3k`; a rate may be a fraction."""
    if number < EXACT_BELOW and number == int(number):
        return str(int(number))
    if 99.95 <= number < EXACT_BELOW - 0.5:
        return f"{number:.0f}"
    return _scaled(number, 1000, _THOUSANDS)


def size(number_bytes: float) -> str:
    """4718592 is `4.5MiB`."""
    return _scaled(number_bytes, 1024, _BYTES)


def _scaled(number: float, base: int, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        shown = _digits(number)
        if float(shown) < base:
            return shown + unit
        number /= base
    return _digits(number) + units[-1]


def _digits(number: float) -> str:
    """Three digits, without zeros at the end of a fraction."""
    if number >= 99.95:
        return f"{number:.0f}"
    return f"{number:.{1 if number >= 9.995 else 2}f}".rstrip("0").removesuffix(".")


def percent(part: float, whole: float) -> str:
    """The part of `whole` in percent; `-` if there is nothing."""
    return f"{_digits(100 * part / whole)}%" if whole else UNKNOWN


def duration(seconds: float) -> str:
    """`2.5s`, `42s`, `1m30s`, `2h05m`, `3d04h`, `12d`."""
    if seconds < 59.5:
        return f"{seconds:.1f}".removesuffix(".0") + "s" if seconds < 9.95 else f"{seconds:.0f}s"
    minutes, left_seconds = divmod(round(seconds), 60)
    hours, left_minutes = divmod(minutes, 60)
    days, left_hours = divmod(hours, 24)
    if days:
        return f"{days}d{left_hours:02}h" if days < 10 else f"{days}d"
    return f"{hours}h{left_minutes:02}m" if hours else f"{minutes}m{left_seconds:02}s"


def microseconds(number_us: float) -> str:
    """`50µs`, `2.5ms`, `1s`."""
    for unit in ("µs", "ms"):
        if number_us < 1000:
            return _digits(number_us) + unit
        number_us /= 1000
    return duration(number_us)


def quantile(latency: Latency, part: float) -> str:
    """The bound within which this part of the deliveries was, such as `<=1ms`; `>1s` beyond the
    histogram's last bound."""
    total = sum(latency.counts)
    if not total:
        return UNKNOWN
    seen = 0
    for bound_us, deliveries in zip(latency.bounds_us, latency.counts, strict=False):
        seen += deliveries
        if seen >= part * total:
            return f"<={microseconds(bound_us)}"
    return f">{microseconds(latency.bounds_us[-1])}"


def mean(latency: Latency) -> str:
    total = sum(latency.counts)
    return microseconds(latency.sum_us / total) if total else UNKNOWN


def by_name(counts: dict[str, int]) -> str:
    """`quota 12, hard 3`, the largest first; `none` if all are zero."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count(number)}" for name, number in ordered if number) or "none"


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """`1 client`, `2 clients`."""
    return f"{count(number)} {singular if number == 1 else plural or singular + 's'}"


def enumerated(words: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *before, last = map(str, words)
    return f"{', '.join(before)} and {last}" if before else last


def parse_seconds(text: str) -> float:
    """A length of time: 500ms, 10s, 5m, 1h, 1d. Raises ValueError, also for no time at all."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if match is None or not (seconds := float(match[1]) * _SECONDS[match[2]]):
        raise ValueError(f"{text!r} is no length of time, such as 500ms, 10s, 5m, 1h")
    return seconds
