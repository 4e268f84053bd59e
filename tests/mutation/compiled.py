"""Changes of one token in the C sources of the ordinary step: does a test fail for each of them?

The changed step is compiled as the bus's own is, and as the tests' is. A change is known by its
function, the line that it is in, what it changes and its ordinal among equal ones. Changes that do
not compile, or make the same machine code, are left out.
"""

import hashlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutation.runner import Runner
from tests.mutation.scratch import Scratch, scratch_of
from tests.mutation.state import Result, State

SOURCES = ("_fan_out.h", "_memory.h", "_ordinary.h", "_step.c")
_WORKER = "tests/unit/broker/worker"
_NEAR = ("charges", "kept_log", "machine", "receipts", "step_deaths", "successive_deaths")
_FAR = ("inheritance", "inherited_requests", "release_deaths", "senders", "unfinished_work")
TESTS = (
    ("tests/unit/compiled/test_compiled.py", f"{_WORKER}/test_ordinary_step.py"),
    tuple(f"{_WORKER}/test_{name}.py" for name in _NEAR),
    ("tests/unit/shared/test_log_share.py", "tests/fuzz/test_held_publishers.py"),
    tuple(f"{_WORKER}/test_{name}.py" for name in _FAR),
    ("tests/broker/test_one_order.py",),
    ("tests/protocol/10-slow-client.t", "tests/protocol/11-holding-publishers-back.t"),
)
"""The nearest ones first."""
SECONDS_MAX = 400.0
_DOES_NOT_COMPILE, _SAME_CODE = "does not compile", "same code"

_REPLACED = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"&&": "||", "||": "&&", "+": "-", "-": "+", "+=": "-=", "-=": "+=", "!": ""},
    **{"++": "--", "--": "++", "|": "&", "|=": "&=", "<<": ">>", ">>": "<<"},
    **{"true": "false", "false": "true", "break": "", "continue": ""},
}
_IGNORED = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|^#(?:\\\n|[^\n])*', re.S | re.M
)
_TOKEN = re.compile(r"->|<<=|>>=|[<>=!+\-|&*/]=|&&|\|\||<<|>>|\+\+|--|[A-Za-z_]\w*|\d\w*|[^\s\w]")
_FUNCTION = re.compile(r"^([a-z]\w*)\([^;{]*\)\n\{", re.M)


class Token(NamedTuple):
    """A change: of a token of a file from `start` to `end`."""

    digest: str
    name: str
    file: str
    start: int
    end: int
    new: str


def tokens(file: str, text: str, seed: int) -> Iterator[Token]:
    """All changes of the functions of a file."""
    blank = _IGNORED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    counts: Counter[str] = Counter()
    for head in _FUNCTION.finditer(blank):
        end = blank.index("\n}", head.end())
        for found in _TOKEN.finditer(blank, head.end(), end):
            old = found[0]
            number = re.fullmatch(r"\d+", old)
            new = str(int(old) + 1) if number else _REPLACED.get(old)
            if new is None:
                continue
            line = text[text.rindex("\n", 0, found.start()) + 1 :].partition("\n")[0].strip()
            key = f"{head[1]} | {line} | {old} | {new}"
            name = f"{key} | {counts[key]}"
            counts[key] += 1
            digest = hashlib.sha256(f"{seed} {name}".encode()).hexdigest()
            yield Token(digest, name, file, *found.span(), new)


def choose(tree: Path, seed: int) -> list[Token]:
    """All changes, in the order in which they are to be tried."""
    folder = tree / "sbus/compiled"
    return sorted(
        token for file in SOURCES for token in tokens(file, (folder / file).read_text(), seed)
    )


def compile_both(tree: Path) -> bool:
    """Compile the step for buses and that for the tests of a scratch tree; False if that fails."""
    load = "from tests.support.compiled_step import load; load()"
    (tree / "build").mkdir(exist_ok=True)
    for command in (["deploy/compile_step.py", "--required"], ["-c", load]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tree, capture_output=True, check=False
        )
        if done.returncode:
            return False
    return True


def run_compiled(
    tree: Path,
    seed: int,
    count: int,
    state: State,
    is_over: Callable[[], bool],
    tell: Callable[[str], None],
) -> None:
    """Try changes until so many have compiled and been tested."""
    with scratch_of(tree) as scratch:
        compile_both(scratch.path)
        own_code = _code(scratch.path)
        changes = choose(tree, seed)
        for token in changes:
            if is_over() or len(tested(state, changes)) >= count:
                return
            if token.name not in state.results:
                result = _run_one(token, scratch, own_code)
                state.add(token.name, result)
                tell(f"{result['result']}, {result['seconds']} s: {token.name}")


def _run_one(token: Token, scratch: Scratch, own_code: bytes) -> Result:
    name = f"sbus/compiled/{token.file}"
    text = (scratch.path / name).read_text()
    result: Result = {"result": _DOES_NOT_COMPILE, "by": "", "seconds": 0.0}
    with scratch.changed(name, text[: token.start] + token.new + text[token.end :]):
        if not compile_both(scratch.path):
            return result
        if _code(scratch.path) == own_code:
            return {**result, "result": _SAME_CODE}
        with Runner(scratch.path, "compiled") as runner:
            for paths in TESTS:
                outcome = runner.run(paths, SECONDS_MAX)
                result["seconds"] = round(result["seconds"] + outcome.seconds, 2)
                if outcome.is_killed:
                    return {**result, "result": "killed", "by": outcome.killer}
    return {**result, "result": "survived"}


def _code(tree: Path) -> bytes:
    """The machine code of the bus's step."""
    module = tree / "sbus/compiled/_step.abi3.so"
    command = ["objdump", "-d", "--no-addresses", "--no-show-raw-insn", str(module)]
    return subprocess.run(command, capture_output=True, check=True).stdout.partition(b"\n\n")[2]


def tested(state: State, changes: list[Token]) -> dict[str, Result]:
    """What came of these changes. The state may have results of other commands as well."""
    done = {one.name: state.results[one.name] for one in changes if one.name in state.results}
    left_out = (_DOES_NOT_COMPILE, _SAME_CODE)
    return {name: result for name, result in done.items() if result["result"] not in left_out}


def summary(state: State, changes: list[Token]) -> list[str]:
    """The score, and what survived."""
    done = tested(state, changes)
    survived = [name for name, result in done.items() if result["result"] == "survived"]
    return [
        f"tree {state.tree}: {len(done) - len(survived)} of {len(done)} changes killed",
        *(f"survived: {name}" for name in survived),
    ]
