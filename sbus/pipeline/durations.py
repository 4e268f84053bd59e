"""Lengths of time as people write them: 500ms, 10s, 5m, 1h, 1d."""

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_seconds(text: str) -> float:
    """Raises ValueError, also for no time at all."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if match is None or not (seconds := float(match[1]) * _SECONDS[match[2]]):
        raise ValueError(f"{text!r} is no length of time, such as 500ms, 10s, 5m, 1h")
    return seconds
