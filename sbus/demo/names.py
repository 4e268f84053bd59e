"""What a process of the demo is called where the bus tells who does what: not just `python`."""

from pathlib import Path


def call_myself(name: str) -> None:
    """The kernel keeps the first 15 bytes."""
    Path("/proc/self/comm").write_text(name)
