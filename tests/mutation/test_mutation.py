"""What the tool changes, by which key it knows that, and that it sees what tests run."""

import ast
import json
import os
from pathlib import Path

import pytest

from tests.mutation import compiled, reach, sample
from tests.mutation.__main__ import BUGS
from tests.mutation.operators import Mutant, mutants
from tests.mutation.planted import Bug, DoesNotApplyError, planted
from tests.mutation.runner import Outcome, Runner, Watch
from tests.mutation.scratch import mark, text_of
from tests.mutation.state import State
from tests.support.bus import PROJECT

SOURCE = '''
"""A module."""

LIMIT = 3


class Queue:
    def take(self, count: int = 1) -> list[int]:
        """At most so many."""
        assert count > 0
        if not self.items or count >= LIMIT:
            self.refuse(count, self.name)
            raise ValueError
        while self.items:
            count -= 1
        return self.items
'''


def found(text: str = SOURCE) -> dict[str, Mutant]:
    return {mutant.key: mutant for mutant in mutants(ast.parse(text))}


def test_every_operator_has_its_mutants() -> None:
    assert list(found()) == [
        "<module> | constant | 3 in LIMIT = 3 | 4 | 0",
        "<module> | constant | 3 in LIMIT = 3 | 2 | 0",
        "Queue | constant | 1 in def take(self, count: int=1) -> list[int]: | 2 | 0",
        "Queue | constant | 1 in def take(self, count: int=1) -> list[int]: | 0 | 0",
        "Queue.take | early return | begin | return | 0",
        "Queue.take | not added | not self.items or count >= LIMIT | in If | 0",
        "Queue.take | not removed | not self.items | self.items | 0",
        "Queue.take | comparison | count >= LIMIT | 0 Gt | 0",
        "Queue.take | dropped statement | self.refuse(count, self.name) | pass | 0",
        "Queue.take | swapped arguments | self.refuse(count, self.name) | 0 | 0",
        "Queue.take | dropped statement | raise ValueError | pass | 0",
        "Queue.take | not added | self.items | in While | 0",
        "Queue.take | dropped statement | count -= 1 | pass | 0",
        "Queue.take | constant | 1 in count -= 1 | 2 | 0",
        "Queue.take | constant | 1 in count -= 1 | 0 | 0",
    ]


def test_every_mutant_is_another_module_with_a_mark_before_the_change() -> None:
    texts = set()
    for number in range(len(found())):
        tree = ast.parse(SOURCE)
        mutants(tree)[number].apply(mark(7))
        texts.add(text := text_of(tree))
        compile(text, "mutant", "exec")
        assert text.count("_sbus_executed[7] = 1") == 1
    assert len(texts) == len(found())


def test_keys_outlive_edits_elsewhere_and_moves() -> None:
    moved = f'"""Another module."""\nOTHER = 5\n\n{SOURCE.partition("LIMIT = 3")[2]}'
    assert {key for key in found() if key.startswith("Queue")} <= found(moved).keys()


def test_equal_mutants_of_a_function_are_told_apart() -> None:
    text = "def f(a):\n    a.run()\n    a.run()\n"
    dropped = [key for key in found(text) if "dropped" in key]
    assert dropped == [f"f | dropped statement | a.run() | pass | {n}" for n in range(2)]


def make_tree(path: Path, **modules: str) -> Path:
    (path / "sbus").mkdir()
    for name, text in modules.items():
        (path / f"sbus/{name}.py").write_text(text)
    return path


def test_a_sample_is_the_same_for_code_that_has_not_changed(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    more = "def g(a):\n    return a > 2\n"
    before = make_tree(tmp_path / "a", one=SOURCE)
    after = make_tree(tmp_path / "b", other=SOURCE, two=more)
    small, large = (sample.choose(before, 1, count) for count in (5, 9))
    assert small == large[:5]
    assert [one.digest for one in small] != [one.digest for one in sample.choose(before, 2, 5)]
    own = [one.digest for one in sample.choose(after, 1, 100) if one.module == "sbus.other"]
    assert own == [one.digest for one in sample.choose(before, 1, 100)]
    assert sample.choose(after, 1, 100, "sbus.two") == [
        one for one in sample.choose(after, 1, 100) if one.module == "sbus.two"
    ]


def test_nearest_tests_come_first_and_those_that_do_not_reach_a_function_never(
    tmp_path: Path,
) -> None:
    (tmp_path / "sbus/part").mkdir(parents=True)
    (tmp_path / "sbus/part/it.py").write_text("def f(): ...\ndef g(): ...\n")
    state = tmp_path / "reach.json"
    near, beside, far = (f"tests/unit/{name}.py" for name in ("part/test_it", "part/test_b", "c"))
    files = {
        "tests/broker/test_a.py": {"tests": {"tests/broker/test_a.py::slow": [3.0, "2"]}},
        far: {"tests": {f"{far}::t": [0.1, "3"]}},
        beside: {"tests": {f"{beside}::t": [0.3, "2"], f"{beside}::u": [0.2, "2"]}},
        near: {"tests": {f"{near}::t": [0.4, "2"], f"{near}::of_g": [0.1, "1"]}},
    }
    state.write_text(json.dumps({"tree": "t", "files": files}))
    unit, other = reach.Reach(state, tmp_path, "t").tests("sbus.part.it", "f")
    assert unit == [f"{near}::t", f"{beside}::u", f"{beside}::t", f"{far}::t"]
    assert other == ["tests/broker/test_a.py::slow"]
    assert reach.Reach(state, tmp_path, "other tree").tests("sbus.part.it", "f") == ([], [])


def test_transcripts_are_among_the_tests_that_reach_functions() -> None:
    files = list(reach.files_of_tests(PROJECT))
    assert {"tests/protocol/07-senders.t", "tests/unit/unix/test_memfd.py"} <= set(files)
    assert all((PROJECT / name).is_file() for name in files)


def test_every_planted_bug_applies_once() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    for bug in BUGS:
        name, text = planted(PROJECT, bug)
        assert text != (PROJECT / name).read_text()
        for test in bug.found_by:
            path, _, function = test.partition("::")
            assert (PROJECT / path).exists(), test
            assert not function or f"def {function}(" in (PROJECT / path).read_text(), test


@pytest.mark.parametrize(
    ("function", "before"),
    [("f", "a.run()\na.rest()"), ("f", "a.run()"), ("g", "a.rest()")],
    ids=["not there", "twice", "in another function"],
)
def test_a_bug_that_does_not_apply_once_is_named(
    tmp_path: Path, function: str, before: str
) -> None:
    text = "def f(a):\n    a.run()\n    a.run()\n    a.run(1)\n    a.rest()\ndef g(a): pass\n"
    tree = make_tree(tmp_path, one=text)
    if before != "a.run()\na.rest()":
        planted(tree, Bug("b", "f", "a.run(1)\na.rest()", "a.rest()", ()))
    with pytest.raises(DoesNotApplyError, match=function):
        planted(tree, Bug("b", function, before, "", ()))


def test_tokens_of_c_are_those_of_functions_and_not_of_comments() -> None:
    text = """#define SIZE 3
/* a < b */
static bool
is_less(int a, int b)
{
    /* a < b */
    return a < b && p->x == 3; // < 4
}
"""
    found = list(compiled.tokens("_step.h", text, 1))
    changed = {text[: token.start] + token.new + text[token.end :] for token in found}
    assert [text[token.start : token.end] for token in found] == ["<", "&&", "==", "3"]
    assert text.replace("p->x == 3", "p->x == 4") in changed
    assert found[0].name == "is_less | return a < b && p->x == 3; // < 4 | < | <= | 0"


def test_results_of_other_commands_in_the_file_count_for_no_change_in_c(tmp_path: Path) -> None:
    first, second = compiled.choose(PROJECT, 1)[:2]
    state = State(tmp_path / "state.json", PROJECT)
    state.add(first.name, {"result": "killed"})
    state.add(second.name, {"result": "same code"})
    state.add("a planted bug", {"result": "not found"})
    state.add("sbus.errors: a mutant", {"result": "not reached"})
    assert list(compiled.tested(state, [first, second])) == [first.name]
    assert compiled.summary(state, [first, second])[0].endswith("1 of 1 changes killed")


def test_a_test_that_fails_at_its_end_has_not_passed() -> None:
    watch = Watch([], None)
    for name, at_end in (("one", "passed"), ("other", "failed")):
        for when, outcome in (("setup", "passed"), ("call", "passed"), ("teardown", at_end)):
            report = pytest.TestReport(name, ("", 0, ""), {}, outcome, None, when, duration=1.0)  # type: ignore[arg-type]
            watch.pytest_runtest_logreport(report)
        watch.pytest_runtest_logfinish(name)
    assert watch.report == {"failed": ["other"], "tests": {"one": (3.0, "")}}


def test_where_no_test_is_run_nothing_is_killed() -> None:
    statuses = {status: Outcome(status, 0.0, 0.0).is_killed for status in (-11, -1, 0, 1, 2, 4, 5)}
    assert [status for status, is_killed in statuses.items() if not is_killed] == [0, 5]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes PID namespaces")
def test_a_file_of_tests_that_is_not_there_kills_nothing(tmp_path: Path) -> None:
    with Runner(tmp_path, "python") as runner, pytest.raises(FileNotFoundError):
        runner.run(["tests/unit/test_nothing.py"], 60)


def test_tests_that_take_too_long_are_told_of() -> None:
    assert Outcome(-1, 300.0, 1.0).failures == ["time-out"]
    assert Outcome(2, 1.0, 1.0).failures == ["before the tests"]
    assert Outcome(1, 1.0, 1.0, ["a", "b"]).failures == ["a", "b"]
    assert Outcome(0, 1.0, 1.0).failures == []
