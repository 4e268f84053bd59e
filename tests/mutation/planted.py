"""Faults that the bus once had, or might have had, planted again: which test finds each of them?

A fault is known by the function that it is in and by what is replaced there, not by its place in
the text: source as the function has it, of an expression or of statements, and what stands for it
with the fault. That must apply exactly once. What is replaced in C is text of a function.
"""

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.mutation.compiled import compile_both
from tests.mutation.operators import MODULE, functions
from tests.mutation.runner import Outcome, Runner
from tests.mutation.scratch import Scratch, scratch_of
from tests.mutation.state import Result, State

SECONDS_MAX = 300.0


class DoesNotApplyError(Exception):
    """The code has changed, so that a fault must be written anew."""


@dataclass(frozen=True)
class Bug:
    """A fault, and the tests of which one is to find it."""

    name: str
    function: str
    """A qualified name; "" for what is in none of a C file."""
    before: str
    after: str
    found_by: Sequence[str]
    file: str = ""
    """In `sbus/compiled`, for a fault in C."""
    step: Literal["python", "compiled"] = "python"
    """Who does the ordinary step in the tests of a fault in Python."""

    @property
    def tested_step(self) -> str:
        return "compiled" if self.file else self.step


# -- planting --------------------------------------------------------------------------------------
def planted(tree: Path, bug: Bug) -> tuple[str, str]:
    """The file with this fault and its text then. Raises DoesNotApplyError."""
    return _planted_in_c(tree, bug) if bug.file else _planted_in_python(tree, bug)


def _planted_in_python(tree: Path, bug: Bug) -> tuple[str, str]:
    found = []
    *classes, last = bug.function.split(".")
    needed = [*(f"class {name}" for name in classes), f"def {last}("]
    if bug.function == MODULE:
        needed = bug.before.split()[:1]
    for path in sorted((tree / "sbus").rglob("*.py")):
        text = path.read_text()
        if not all(words in text for words in needed):
            continue
        syntax = ast.parse(text)
        named = [syntax] if bug.function == MODULE else _functions(syntax, bug.function)
        count = sum(_Replacement(bug.before, bug.after).count(node) for node in named)
        if count:
            found.append((str(path.relative_to(tree)), syntax, count))
    if [count for _, _, count in found] != [1]:
        places = [f"{count} times in {name}" for name, _, count in found]
        raise DoesNotApplyError(f"{bug.before!r} in {bug.function}: {places}")
    name, syntax, _ = found[0]
    return name, ast.unparse(ast.fix_missing_locations(syntax))


def _functions(tree: ast.Module, name: str) -> list[ast.AST]:
    return [node for function, node in functions(tree) if function == name]


class _Replacement(ast.NodeTransformer):
    """Replaces an expression by another, or statements that follow each other."""

    def __init__(self, before: str, after: str) -> None:
        self._before = ast.parse(before).body
        self._after = ast.parse(after).body or [ast.Pass()]
        self._dumps = [ast.dump(node) for node in self._before]
        both = (*self._before, *self._after)
        self._is_expression = len(both) == 2 and all(isinstance(node, ast.Expr) for node in both)
        self._count = 0

    def count(self, node: ast.AST) -> int:
        """Replace all in this function; returns how many there were."""
        self.visit(node)
        return self._count

    def visit(self, node: ast.AST) -> ast.AST:
        before, after = self._before[0], self._after[0]
        if self._is_expression and isinstance(node, ast.expr):
            assert isinstance(before, ast.Expr)
            assert isinstance(after, ast.Expr)
            if ast.dump(node) == ast.dump(before.value):
                self._count += 1
                return after.value
        for _, value in ast.iter_fields(node):
            is_body = isinstance(value, list) and value and isinstance(value[0], ast.stmt)
            if is_body and not self._is_expression:
                self._replace_in(value)
        visited: ast.AST = super().visit(node)
        return visited

    def _replace_in(self, body: list[ast.stmt]) -> None:
        size, place = len(self._dumps), 0
        while place + size <= len(body):
            if [ast.dump(node) for node in body[place : place + size]] == self._dumps:
                self._count += 1
                body[place : place + size] = self._after
                place += len(self._after)
            else:
                place += 1


def _planted_in_c(tree: Path, bug: Bug) -> tuple[str, str]:
    name = f"sbus/compiled/{bug.file}"
    text = (tree / name).read_text()
    of_function = rf"^{bug.function}\([^;]*?^{{.*?^}}"
    found = re.search(of_function if bug.function else ".*", text, re.MULTILINE | re.DOTALL)
    body = found[0] if found else ""
    if body.count(bug.before) != 1:
        raise DoesNotApplyError(f"{bug.before!r} in {bug.function}: {body.count(bug.before)} times")
    return name, text.replace(body, body.replace(bug.before, bug.after))


# -- finding ---------------------------------------------------------------------------------------
def run_planted(
    tree: Path,
    bugs: Iterable[Bug],
    state: State,
    is_over: Callable[[], bool],
    tell: Callable[[str], None],
) -> None:
    """Run the tests for each fault that has not been tried. A test that finds one must pass without
    it."""
    with scratch_of(tree) as scratch:
        for bug in bugs:
            if bug.name in state.results:
                continue
            if is_over():
                return
            result = _run_one(tree, bug, scratch)
            state.add(bug.name, result)
            tell(_row(bug.name, result))


def _run_one(tree: Path, bug: Bug, scratch: Scratch) -> Result:
    try:
        name, text = planted(tree, bug)
    except DoesNotApplyError as error:
        return {"result": "does not apply", "by": str(error), "seconds": 0.0}
    with scratch.changed(name, text):
        if bug.tested_step == "compiled" and not compile_both(scratch.path):
            return {"result": "does not compile", "by": "", "seconds": 0.0}
        outcome = _run_tests(bug, scratch, bug.found_by)
    result: Result = {"result": "found", "by": outcome.killer, "seconds": outcome.seconds}
    if not outcome.is_killed:
        return {**result, "result": "not found", "by": ""}
    without = _run_tests(bug, scratch, outcome.failed[:1] or bug.found_by)
    return {**result, "result": "fails without it"} if without.status else result


def _run_tests(bug: Bug, scratch: Scratch, tests: Sequence[str]) -> Outcome:
    if bug.tested_step == "compiled":
        compile_both(scratch.path)
    with Runner(scratch.path, bug.tested_step) as runner:
        return runner.run(tests, SECONDS_MAX)


def _row(name: str, result: Result) -> str:
    return f"{result['result']:10} {result['seconds']:6.1f} s  {name}: {result['by']}"


def summary(state: State, bugs: Iterable[Bug]) -> list[str]:
    """The table: each fault, the test that finds it, and the seconds."""
    rows = [(bug.name, state.results[bug.name]) for bug in bugs if bug.name in state.results]
    found = sum(result["result"] == "found" for _, result in rows)
    return [
        f"tree {state.tree}: {found} of {len(rows)} planted bugs found",
        *(_row(name, result) for name, result in rows),
    ]
