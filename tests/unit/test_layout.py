"""The rules of the house as an ordinary test: floors, dead files, banned constructs, top level.

Reads the sources as text and syntax trees, and imports none of them.
"""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
LINES_MAX = 450

TOP_LEVEL = {
    *("pyproject.toml", "README.md", "LICENSE", ".gitignore"),
    *("sbus", "tests", "deploy", "docs", ".ci"),
}

FLOORS = {
    "sbus.errors": 0,
    "sbus.limits": 0,
    "sbus.version": 0,
    "sbus.protocol": 1,
    "sbus.routing": 2,
    "sbus.unix": 2,
    "sbus.shared": 3,
    "sbus.client": 3,
    "sbus": 4,  # sbus/__init__.py itself: what users import
    "sbus.broker": 4,
    "sbus.demo": 5,
    "sbus.cli": 5,
    "sbus.bench": 6,
    "sbus.pipeline": 7,
}
"""Each part imports from itself and from floors below its own; nothing else of the project."""

ONLY = {
    "sbus.client": {"sbus.errors", "sbus.limits", "sbus.protocol", "sbus.unix"},
    "sbus": {"sbus.errors", "sbus.version", "sbus.client", "sbus.protocol"},
    "sbus.demo": {"sbus", "sbus.errors"},
}
"""Parts that must do with less than the floors below them."""

PURE = {"sbus.errors", "sbus.limits", "sbus.protocol", "sbus.routing"}
"""Parts without input, output or an event loop."""
IMPURE_MODULES = {
    *("trio", "asyncio", "threading", "multiprocessing", "subprocess"),
    *("socket", "select", "selectors", "os", "io", "time", "signal", "fcntl", "mmap"),
}
EVENT_LOOPS = {"trio", "asyncio"}
NO_EVENT_LOOP = {"sbus.unix", "sbus.shared"}

SOURCES = sorted((PROJECT / "sbus").rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def part(module: str) -> str:
    """The row of FLOORS that a module of the project belongs to."""
    return ".".join(module.split(".")[:2])


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, inside functions too; `from x import module` in full."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the floor"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


def texts(path: Path) -> Iterator[str]:
    """Every string of a file: one may name a module to load, or to run with `python -m`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def is_program(path: Path) -> bool:
    """Whether `python -m` of it does something."""
    return path.name == "__main__.py" or any(
        isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        for node in tree(path).body
    )


def test_every_part_has_its_floor() -> None:
    assert {part(module) for module in MODULES} <= FLOORS.keys()


def test_imports_go_down_the_floors() -> None:
    wrong = []
    for module, path in MODULES.items():
        own = part(module)
        for imported in imports(path):
            other = part(imported)
            if imported.split(".")[0] != "sbus" or other == own:
                continue
            if FLOORS[other] >= FLOORS[own] or other not in ONLY.get(own, {other}):
                wrong.append(f"{module} imports {imported}")
    assert not wrong


def test_pure_parts_do_no_input_or_output() -> None:
    wrong = []
    for module, path in MODULES.items():
        banned = IMPURE_MODULES if part(module) in PURE else set()
        banned |= EVENT_LOOPS if part(module) in NO_EVENT_LOOP else set()
        found = {imported.split(".")[0] for imported in imports(path)} & banned
        wrong += [f"{module} imports {imported}" for imported in found]
    assert not wrong


def test_no_file_is_dead() -> None:
    scripts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["scripts"]
    used = {target.partition(":")[0] for target in scripts.values()}
    for module, path in MODULES.items():
        used.update({*imports(path), *texts(path)} - {module})
    dead = {
        module
        for module, path in MODULES.items()
        if path.name != "__init__.py" and module not in used and not is_program(path)
    }
    assert not dead, "imported by nothing in sbus/, and no programs either"


def test_the_top_level_is_what_was_agreed() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=PROJECT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = {name.split("/")[0] for name in listed.stdout.decode().split("\0") if name}
    else:  # no checkout but an unpacked archive, say, in which a run may have left its traces
        names = {path.name for path in PROJECT.iterdir()} - run_leftovers()
    assert names == TOP_LEVEL


def run_leftovers() -> set[str]:
    patterns = (PROJECT / ".gitignore").read_text().splitlines()
    return {line.strip("/") for line in patterns if line and not line.startswith("#")}


def test_every_file_opens_with_what_it_is() -> None:
    assert not [module for module, path in MODULES.items() if not ast.get_docstring(tree(path))]


def test_no_file_is_too_long() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert not {module: lines for module, lines in lengths.items() if lines > LINES_MAX}


def test_no_exception_is_caught_without_its_name() -> None:
    assert not [
        f"{module}, line {node.lineno}"
        for module, path in MODULES.items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]


def test_no_channel_is_unbounded() -> None:
    assert not [
        f"{module}, line {node.lineno}: {ast.unparse(node)}"
        for module, path in MODULES.items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and "open_memory_channel" in ast.unparse(node.func)
        and re.search(r"\binf\b", ast.unparse(node.args[0]))
    ]
