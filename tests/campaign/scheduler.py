"""Runs one seed after the other until the time is over, and keeps what has been done in a file.

So hours add up over days: a run that was killed begins anew, and all that were finished count.
"""

import hashlib
import json
import os
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.campaign.plan import plan_of
from tests.campaign.runs import Outcome, run
from tests.history.checks import Violation
from tests.support.bus import PROJECT


def tree_id(tree: Path) -> str:
    """The commit of a tree, and a digest of what was changed since."""
    commit = _git(tree, "rev-parse", "--short=12", "HEAD").decode().strip()
    changes = _git(tree, "diff", "HEAD")
    if not changes:
        return commit or "unknown"
    return f"{commit}-dirty-{hashlib.sha256(changes).hexdigest()[:8]}"


def _git(tree: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(tree), *arguments]
    return subprocess.run(command, capture_output=True, check=False).stdout


class State:
    """What a campaign has done: the seeds, figures and failures of each tree."""

    def __init__(self, path: Path | None, tree: str) -> None:
        self._path = path
        read = json.loads(path.read_text()) if path and path.exists() else {}
        self._trees: dict[str, Any] = read
        new: dict[str, Any] = {"seeds": [], "seconds": 0.0, "figures": {}, "failures": []}
        self.own = self._trees.setdefault(tree, new)

    def add(
        self, seed: int, seconds: float, figures: dict[str, int], failure: dict[str, Any] | None
    ) -> None:
        """Write down what came of a seed."""
        self.own["seeds"].append(seed)
        self.own["seconds"] = round(self.own["seconds"] + seconds, 1)
        self.own["figures"] = dict(Counter(self.own["figures"]) + Counter(figures))
        if failure:
            self.own["failures"].append(failure)
        if self._path is None:
            return
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._trees, indent=1))
        os.replace(new, self._path)


def repeat_command(seed: int, trees: Sequence[Path]) -> str:
    other = "".join(f" --tree {tree}" for tree in trees if len(trees) > 1 or tree != PROJECT)
    return f"python -m tests.campaign --only buses --seed {seed} --runs 1{other}"


def run_seeds(
    state: State,
    first: int,
    is_over: Callable[[int], bool],
    kept: Path,
    trees: Sequence[Path],
    tell: Callable[[str], None],
) -> None:
    """Run the seeds from the first on that were not run yet. A run that ends with an error of its
    own has failed, too."""
    done = set(state.own["seeds"])
    seed, count = first, 0
    while not is_over(count):
        while seed in done:
            seed += 1
        plan = plan_of(seed)
        tell(f"seed {seed}: {plan}")
        begun = time.monotonic()
        directory = kept / f"seed-{seed}"
        try:
            outcome = run(plan, directory, trees)
        except Exception:
            outcome = Outcome([Violation("campaign", traceback.format_exc())], {})
        failure = None
        if outcome.violations:
            texts = [str(violation) for violation in outcome.violations]
            failure = {"seed": seed, "violations": texts, "logs": str(directory)}
            tell("\n".join(["failed:", *texts, f"logs in {directory}"]))
            tell(repeat_command(seed, trees))
        state.add(seed, time.monotonic() - begun, outcome.figures, failure)
        done.add(seed)
        count += 1
