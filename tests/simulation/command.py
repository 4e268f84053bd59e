"""The command line of the simulations."""

import argparse
import gc
import resource
import subprocess
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from sbus.compiled import STEP
from tests.simulation.every_death import run_all
from tests.simulation.mutants import MUTANTS
from tests.simulation.seeds import simulate

_SEEDS_PER_COLLECTION = 20
_SEEDS_PER_PROCESS = 500
_OPEN_FILES = 4096
"""Fewer than usual, as each takes room in the shared memory."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--step", choices=("both", "python", "compiled"), default="both")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    parser.add_argument("--mutant", choices=MUTANTS, help="make this mistake, which is to be found")
    parser.add_argument(
        "--every-death",
        type=int,
        metavar="N",
        help="in place of seeds: a death before every N-th instruction of every critical section",
    )
    parser.add_argument("--digests", action="store_true", help="show what came of each seed")
    return parser.parse_args()


def _step_of(seed: int, choice: str) -> str:
    return ("python", STEP)[seed % 2] if choice == "both" else choice


def _run(given: argparse.Namespace) -> int:
    """Run all seeds in this process; returns how many have failed."""
    failures = 0
    counts: Counter[str] = Counter()
    gc.collect()
    gc.freeze()
    for seed in range(given.first, given.first + given.seeds):
        step = _step_of(seed, given.step)
        try:
            outcome = simulate(seed, step)
        except Exception as error:
            failures += 1
            _show_failure(error)
            mutant = f" --mutant {given.mutant}" if given.mutant else ""
            again = f"--first {seed} --seeds 1 --step {step}{mutant}"
            print(f"seed {seed} failed: python -m tests.simulation {again}", flush=True)
            if given.mutant:
                break  # it is found
        else:
            counts += outcome.counts
            if given.digests:
                print(f"seed {seed}: {outcome.digest}")
        if seed % _SEEDS_PER_COLLECTION == 0:
            gc.collect()
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return failures


def _show_failure(error: BaseException) -> None:
    """Show an error without the groups around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    traceback.print_exception(error, file=sys.stdout)


def _run_in_processes(given: argparse.Namespace) -> int:
    """Run pieces of all seeds in other processes; returns how many of these have failed."""
    end = given.first + given.seeds

    def run(first: int) -> int:
        options = ["--step", given.step, *(("--mutant", given.mutant) if given.mutant else ())]
        seeds = min(_SEEDS_PER_PROCESS, end - first)
        numbers = ["--first", str(first), "--seeds", str(seeds)]
        command = [sys.executable, "-m", "tests.simulation", *numbers, *options]
        return subprocess.run(command, check=False).returncode

    with ThreadPoolExecutor(given.jobs) as pool:
        return sum(pool.map(run, range(given.first, end, _SEEDS_PER_PROCESS)))


def main() -> None:
    given = _options()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, hard))
    if given.every_death:
        found = run_all(given.first, given.every_death, given.jobs)
        print("\n".join(f"{number:6} {hold}" for hold, number in found.items()))
        print(f"{found.total()} deaths in critical sections and behind them, 0 failed")
        return
    began_at = time.perf_counter()
    with MUTANTS[given.mutant] if given.mutant else nullcontext():
        is_small = given.jobs == 1 and given.seeds <= _SEEDS_PER_PROCESS
        failures = _run(given) if is_small else _run_in_processes(given)
    seconds = time.perf_counter() - began_at
    what = "failed" if is_small else "processes with failures"
    print(f"{given.seeds} seeds in {seconds:.1f} s, {failures} {what}", flush=True)
    sys.exit(1 if failures else 0)
