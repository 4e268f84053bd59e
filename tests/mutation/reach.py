"""Which tests reach which function: found by one run of each test file in an instrumented copy.

Whatever process of a bus runs a function while a test does, the test has reached it. A test that
fails in such a copy, or on the ordinary step in Python, is not among them; of a file that takes too
long, none is.
"""

import ast
import json
import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.mutation.operators import MODULE, body_start, functions
from tests.mutation.runner import Runner
from tests.mutation.scratch import mark, scratch_of, text_of

FOLDERS = (
    "tests/unit",
    "tests/contracts",
    "tests/fuzz",
    "tests/protocol",
    "tests/broker",
    "tests/bridge",
)
FILE_SECONDS_MAX = 300.0
UNIT_SECONDS_MAX = 8.0
OTHER_SECONDS_MAX = 12.0
"""For a mutant that survives. What is killed is killed by one of the first tests, mostly."""


def sources(tree: Path) -> dict[str, Path]:
    """The modules of the product, by name."""
    found = {}
    for path in sorted((tree / "sbus").rglob("*.py")):
        parts = path.relative_to(tree).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def files_of_tests(tree: Path) -> Iterator[str]:
    """Those that are run, transcripts among them."""
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*")):
            if fnmatch(path.name, "test_*.py") or path.suffix == ".t":
                yield str(path.relative_to(tree))


class Reach:
    """The record, which is kept in a file; it is good for one tree."""

    def __init__(self, path: Path, tree: Path, name: str) -> None:
        self._path = path
        self._tree = tree
        self._files: dict[str, dict[str, Any]] = {}
        if path.exists() and (read := json.loads(path.read_text()))["tree"] == name:
            self._files = read["files"]
        self._name = name
        self._places: dict[str, dict[str, int]] = {}
        count = 0
        for module, source in sources(tree).items():
            own = self._places[module] = {}
            for function, _ in functions(ast.parse(source.read_text())):
                count += function not in own
                own.setdefault(function, count - 1)
        self._count = count

    def complete(self, is_over: Callable[[], bool], tell: Callable[[str], None]) -> None:
        """Run the test files that have not been run."""
        files = [name for name in files_of_tests(self._tree) if name not in self._files]
        if not files:
            return
        with scratch_of(self._tree, self._count) as scratch:
            for module, path in sources(self._tree).items():
                name = str(path.relative_to(self._tree))
                scratch.write(name, self._instrumented(module, path.read_text()))
            with Runner(scratch.path, "python") as runner:
                for name in files:
                    if is_over():
                        return
                    scratch.clear()
                    done = runner.run([name], FILE_SECONDS_MAX, page=scratch.page, options=())
                    failed = {"failed": done.failed, "status": done.status}
                    self._files[name] = {"tests": done.tests, **failed}
                    self._save()
                    tell(
                        f"{name}: {len(done.tests)} tests, {done.seconds} s, failed {done.failures}"
                    )

    def tests(self, module: str, function: str) -> tuple[list[str], list[str]]:
        """The tests for a mutant in this function, from which those that it fails are to be
        expected first: unit tests, and others. Each list is as long as a survivor may take."""
        own = self._places[module]
        while function not in own and function != MODULE:  # a class has the reach of its methods
            own = {name: at for name, at in own.items() if name.startswith(f"{function}.")} or own
            function = MODULE
        places = [own[function]] if function in own else list(own.values())
        bits = sum({1 << (self._count - 1 - place) for place in places})
        unit: list[tuple[int, float, str]] = []
        other: list[tuple[int, float, str]] = []
        for file, record in self._files.items():
            distance = _distance(module, file)
            for name, (seconds, page) in record["tests"].items():
                if int(page, 16) & bits:
                    (unit if file.startswith("tests/unit/") else other).append(
                        (distance, seconds, name)
                    )
        return _within(unit, UNIT_SECONDS_MAX), _within(other, OTHER_SECONDS_MAX)

    def seconds(self, tests: list[str]) -> float:
        """What these tests took."""
        return sum(float(self._files[name.partition("::")[0]]["tests"][name][0]) for name in tests)

    def _instrumented(self, module: str, text: str) -> str:
        tree = ast.parse(text)
        places = self._places[module]
        for function, node in functions(tree):
            node.body.insert(body_start(node.body), mark(places[function]))
        return text_of(tree) if places else text

    def _save(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"tree": self._name, "files": self._files}))
        os.replace(new, self._path)


def _distance(module: str, test_file: str) -> int:
    """How far tests are from a module: 0 for those of its own name, 1 for those of its folder."""
    folder, _, name = module.removeprefix("sbus.").replace(".", "/").rpartition("/")
    if test_file == f"tests/unit/{folder}/test_{name}.py":
        return 0
    return 1 if test_file.startswith(f"tests/unit/{folder}/") else 2


def _within(tests: list[tuple[int, float, str]], seconds_max: float) -> list[str]:
    """The nearest and fastest of them, in this order."""
    chosen: list[str] = []
    for _, seconds, name in sorted(tests):
        if seconds <= seconds_max or not chosen:
            chosen.append(name)
            seconds_max -= seconds
    return chosen
