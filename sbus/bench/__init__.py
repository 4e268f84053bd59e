"""Measurements of the broker: load generators in C, and the Python that runs and evaluates them.

Run as `python -m sbus.bench NAME`; docs/benchmarks.md explains each figure.
"""

from sbus.errors import SbusError


class BenchmarkFailed(SbusError):
    """A part ended, hung, lost a message or is missing; the text says which one and how."""
