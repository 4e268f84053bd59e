"""Simulations of a whole bus: `python -m tests.simulation --seeds 100000 --jobs 2`.

Each seed is one simulation, with the ordinary step in Python or compiled by turns. A seed that
fails is named, with the command that repeats it exactly.
"""

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    # The order of sets depends on it.
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})

from tests.simulation import clock
from tests.support import compiled_step

clock.install()
compiled_step.load()

from tests.simulation.command import main  # noqa: E402

main()
