"""A sample of the mutants of `sbus/`, and whether a test fails for each of them.

The sample consists of the mutants whose keys have the smallest digests. So a mutant of code that
has not changed is in the samples of both trees, each package has its share, and what has been done
of a sample is a smaller sample.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutation.operators import Mutant, mutants
from tests.mutation.reach import Reach, sources
from tests.mutation.runner import Outcome, Runner
from tests.mutation.scratch import Scratch, mark, scratch_of, text_of
from tests.mutation.state import Result, State

KILLED, SURVIVED, NOT_REACHED = "killed", "survived", "not reached"
_START_SECONDS_MAX = 20.0
_SLOWER = 4
"""How much slower than when it was recorded a run may be before it counts as killed."""


class Sampled(NamedTuple):
    """A mutant, by its number in a module; `name` is that in the state file."""

    digest: str
    module: str
    number: int
    name: str


def choose(tree: Path, seed: int, count: int, only: str = "") -> list[Sampled]:
    """The sample, in the order in which it is to be run."""
    return sorted(_candidates(tree, seed, only))[:count]


def _candidates(tree: Path, seed: int, only: str) -> Iterator[Sampled]:
    for module, path in sources(tree).items():
        if only and not f"{module}.".startswith(f"{only}."):
            continue
        for number, mutant in enumerate(mutants(ast.parse(path.read_text()))):
            digest = hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()
            yield Sampled(digest, module, number, f"{module}: {mutant.key}")


def run_sample(
    tree: Path,
    sample: Iterable[Sampled],
    state: State,
    reach: Reach,
    is_over: Callable[[], bool],
    tell: Callable[[str], None],
) -> None:
    """Run those mutants that have not been run."""
    with scratch_of(tree) as scratch, Runner(scratch.path, "python") as runner:
        for sampled in sample:
            if sampled.name in state.results:
                continue
            if is_over():
                return
            result = _run_one(sampled, tree, scratch, runner, reach)
            state.add(sampled.name, result)
            tell(f"{result['result']}, {result['seconds']} s: {sampled.name}")


def _run_one(
    sampled: Sampled, tree: Path, scratch: Scratch, runner: Runner, reach: Reach
) -> Result:
    path = sources(tree)[sampled.module]
    syntax = ast.parse(path.read_text())
    mutant: Mutant = mutants(syntax)[sampled.number]
    mutant.apply(mark(0))
    result: Result = {"result": NOT_REACHED, "line": mutant.line, "seconds": 0.0, "by": ""}
    with scratch.changed(str(path.relative_to(tree)), text_of(syntax)):
        scratch.clear()
        for tests in reach.tests(sampled.module, mutant.function):
            if not tests:
                continue
            outcome = _run_tests(tests, runner, reach)
            result["seconds"] = round(result["seconds"] + outcome.seconds, 2)
            if outcome.is_killed:
                return {**result, "result": KILLED, "by": outcome.killer}
            if scratch.was_executed():
                result["result"] = SURVIVED
    return result


def _run_tests(tests: list[str], runner: Runner, reach: Reach) -> Outcome:
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    seconds_max = _START_SECONDS_MAX + _SLOWER * reach.seconds(tests)
    return runner.run(files, seconds_max, tests)


def package(name: str) -> str:
    """The row of the table for a mutant of this name."""
    folders = name.partition(":")[0].split(".")[:-1]
    return ".".join(folders[:3])


def summary(state: State, sample: list[Sampled]) -> list[str]:
    """The table of packages."""
    done = {one.name: state.results[one.name] for one in sample if one.name in state.results}
    counts: dict[str, Counter[str]] = {}
    for name, result in done.items():
        for row in (package(name), "all"):
            counts.setdefault(row, Counter())[result["result"]] += 1
    lines = [
        f"tree {state.tree}, {len(done)} of {len(sample)} mutants",
        f"{'package':28} {'mutants':>8} {KILLED:>8} {SURVIVED:>9} {NOT_REACHED:>12} {'score':>6}",
    ]
    for row in sorted(counts, key=lambda row: (row == "all", row)):
        own = counts[row]
        score = f"{own[KILLED] / own.total():.0%}"
        figures = f"{own[KILLED]:8} {own[SURVIVED]:9} {own[NOT_REACHED]:12} {score:>6}"
        lines.append(f"{row:28} {own.total():8} {figures}")
    return lines


def survivors(state: State, sample: list[Sampled]) -> list[str]:
    """The mutants of the sample that no test noticed, by module and line."""
    names = [one.name for one in sample if one.name in state.results]
    lines = [
        (name.partition(":")[0], state.results[name]["line"], name)
        for name in names
        if state.results[name]["result"] != KILLED
    ]
    return [
        f"{state.results[name]['result']}: line {line} of {name}" for _, line, name in sorted(lines)
    ]
