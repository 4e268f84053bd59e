"""Why a benchmark has no result."""

from sbus.errors import SbusError


class BenchmarkFailed(SbusError):
    """A part ended, hung, lost a message or is missing; the text says which and how."""
