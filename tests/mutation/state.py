"""What has been done of each tree, in a file: so a command that was ended goes on where it was."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaign.scheduler import tree_id

Result = dict[str, Any]


class State:
    """The results of one tree, by the key of what was changed in it."""

    def __init__(self, path: Path, tree: Path) -> None:
        self._path = path
        self.tree = tree_id(tree)
        self._trees: dict[str, dict[str, Result]] = {}
        if path.exists():
            self._trees = json.loads(path.read_text())
        self.results = self._trees.setdefault(self.tree, {})

    def add(self, key: str, result: Result) -> None:
        self.results[key] = result
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._trees, indent=1))
        os.replace(new, self._path)


def deadline(seconds: float | None) -> Callable[[], bool]:
    """Whether so much time has passed since this call; never, if None."""
    end = None if seconds is None else time.monotonic() + seconds
    return lambda: end is not None and time.monotonic() >= end
