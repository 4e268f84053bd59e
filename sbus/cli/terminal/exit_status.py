"""How a command ends when it does not simply finish.

| what happened | on standard error | exit status |
|---|---|---|
| Ctrl-C | nothing | 130, as for a process that SIGINT ended |
| nobody reads its output any more | nothing | 141, as for one that SIGPIPE ended |
| the bus, a file or the system said no | `COMMAND: why`, one line | 1 |

Errors of usage are click's, status 2. This module does not know what the command does.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sbus.cli.terminal.error_output import report_error
from sbus.errors import SbusError
from sbus.unix.standard_streams import OUTPUT

INTERRUPTED = 130
NOBODY_READS = 141
FAILED = 1


@contextmanager
def conventional_endings(command: str) -> Iterator[None]:
    """Turn what escapes from the block into one of the endings above, a SystemExit."""
    try:
        yield
    except KeyboardInterrupt:
        _abandon_output()
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        _abandon_output()
        raise SystemExit(NOBODY_READS) from None
    except SbusError as error:
        report_error(str(error), command=command)
        raise SystemExit(FAILED) from None
    except OSError as error:
        report_error(_describe(error), command=command)
        _abandon_output()
        raise SystemExit(FAILED) from None


def write(text: bytes) -> None:
    """Print, and let the reader have it now."""
    left = memoryview(text)
    while left:
        left = left[os.write(OUTPUT, left) :]


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _abandon_output() -> None:
    """Let what click has buffered go nowhere when the interpreter ends, without a word about it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, OUTPUT)
    os.close(null)
