"""Workers are killed at random under load: `python -m tests.broker.deaths_campaign --help`.

With `--stop` they are stopped instead, and the bus has to find out: one at a time, because it kills
one at a time. What clients must receive is in `tests.support.checked_load`.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.support.bus import Bus, running_bus
from tests.support.checked_load import CheckedLoad
from tests.support.processes import worker_pids

_SILENCE = ("--limit", "worker_silence_seconds_max=1")


class _Killer:
    """Sends a signal to one worker after the other."""

    def __init__(self, bus: Bus, chance: random.Random, signum: signal.Signals) -> None:
        self._bus = bus
        self._chance = chance
        self._signum = signum
        self._victim = 0
        self.deaths = 0

    def end_worker(self) -> None:
        """Send the signal to a random worker, unless the last one is still there."""
        pids = list(worker_pids(self._bus).values())
        if pids and self._victim not in pids:
            self._victim = self._chance.choice(pids)
            os.kill(self._victim, self._signum)
            self.deaths += 1


def run_campaign(
    directory: Path,
    *,
    clients: int,
    workers: int,
    seconds: float,
    seconds_per_death: float,
    messages_per_second: int,
    stop: bool = False,
    seed: int = 1,
) -> str:
    """Run one, check it, and return what happened."""
    chance = random.Random(seed)
    with running_bus(directory, *_SILENCE, workers=workers) as bus:
        killer = _Killer(bus, chance, signal.SIGSTOP if stop else signal.SIGKILL)
        load = CheckedLoad(bus, clients, chance)
        try:
            ends_at = time.monotonic() + seconds
            while time.monotonic() < ends_at:
                load.run_for(messages_per_second, seconds_per_death)
                killer.end_worker()
            load.finish()
            load.check(deaths=killer.deaths)
        finally:
            load.close()
    return f"{killer.deaths} deaths, {load.report()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seconds-per-death", type=float, default=1)
    parser.add_argument("--messages-per-second", type=int, default=2_000)
    parser.add_argument("--stop", action="store_true", help="stop workers instead of killing them")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sys.stdout.write(run_campaign(Path(directory), **vars(options)) + "\n")


if __name__ == "__main__":
    main()
