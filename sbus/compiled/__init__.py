"""What is compiled, and its twin in Python: records that both languages read.

`_step` holds the ordinary step of a worker (`sbus.broker.worker.ordinary_step`) and the *records*:
base classes whose fields C reads as fast as its own. Where it was not compiled, `records` has the
same classes in Python, and Python does everything.

The environment variable SBUS_STEP chooses: `compiled`, `python`, or nothing for `compiled` where it
is there. A module that was compiled from other sources than those beside it counts as absent.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

VARIABLE: Final = "SBUS_STEP"
SOURCES: Final = ("_fan_out.h", "_memory.h", "_ordinary.h", "_step.c")


def sources_digest() -> str:
    """What tells one version of the C sources from another."""
    folder = Path(__file__).parent
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in SOURCES)).hexdigest()


def _load() -> tuple[str, str]:
    """Import the compiled module, unless Python is to do its work; returns which of them does, and
    why it is not the compiled one, unless that was chosen.

    Ends the program with a message if that is not possible as SBUS_STEP has it.
    """
    choice = os.environ.get(VARIABLE, "")
    if choice not in ("", "compiled", "python"):
        raise SystemExit(f"{VARIABLE}={choice!r}: must be 'compiled' or 'python'")
    if choice == "python":
        return "python", ""
    try:
        from sbus.compiled import _step

        if sources_digest() != _step.SOURCES:
            raise ImportError("sbus.compiled._step was compiled from other sources")
    except ImportError as error:
        if choice == "compiled":
            raise SystemExit(f"{VARIABLE}={choice!r}: {error}") from error
        return "python", str(error)
    return "compiled", ""


STEP, FALLBACK_REASON = _load()
"""Who does the ordinary step: "compiled" or "python"; and why Python, if nobody chose it."""

if TYPE_CHECKING or STEP == "python":
    from sbus.compiled.records import (
        LogRecord,
        OriginRecord,
        OutboxRecord,
        RouteRecord,
        SessionRecord,
        TableRecord,
    )
else:
    from sbus.compiled._step import (
        LogRecord,
        OriginRecord,
        OutboxRecord,
        RouteRecord,
        SessionRecord,
        TableRecord,
    )

__all__ = [
    "FALLBACK_REASON",
    "SOURCES",
    "STEP",
    "VARIABLE",
    "LogRecord",
    "OriginRecord",
    "OutboxRecord",
    "RouteRecord",
    "SessionRecord",
    "TableRecord",
    "sources_digest",
]
