"""The rules for the source tree: floors and rooms, sizes, dead files, banned constructs and words.

The sources are read as text and syntax trees; none is imported. To add a part or a room, give it
its row in FLOORS or ROOMS.
"""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Set
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
CONSTRUCTOR_PARAMETERS_MAX = 6

BANNED_PHRASES = re.compile(
    r"\b(whoever|of whom|gone by|let pass|is said|are said)\b", re.IGNORECASE
)
"""Turns of phrase that hide the subject of a sentence."""

TOP_LEVEL = {
    *("pyproject.toml", "README.md", "LICENSE", ".gitignore"),
    *("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *("sbus", "tests", "deploy", "docs", ".ci"),
}

FLOORS = {
    "sbus.errors": 0,
    "sbus.limits": 0,
    "sbus.version": 0,
    "sbus.compiled": 1,
    "sbus.protocol": 1,
    "sbus.routing": 2,
    "sbus.validation": 2,
    "sbus.unix": 2,
    "sbus.bus_options": 3,
    "sbus.toml_file": 3,
    "sbus.shared": 3,
    "sbus.client": 3,
    "sbus": 4,  # sbus/__init__.py itself, and PUBLIC: what users import
    "sbus.bridge": 4,
    "sbus.broker": 4,
    "sbus.demo": 5,
    "sbus.cli": 5,
    "sbus.pipeline": 6,
    "sbus.bench": 7,
}
"""Each part imports from itself and from floors below its own; nothing else of the project."""

ROOMS = {
    "sbus.broker.config": 0,
    "sbus.broker.events": 0,
    "sbus.broker.ipc": 0,
    "sbus.broker.delivery": 1,
    "sbus.broker.front": 1,
    "sbus.broker.admin": 2,
    "sbus.broker.worker": 2,
    "sbus.broker.front_process": 3,
    "sbus.broker.worker_process": 3,
    "sbus.broker.bus": 4,
    "sbus.cli.optional_packages": 0,
    "sbus.cli.limit_options": 0,
    "sbus.cli.terminal": 0,
    "sbus.cli.metrics": 1,
    "sbus.cli.sbusd": 1,
    "sbus.cli.views": 1,
    "sbus.cli.top": 2,
    "sbus.cli.sbusctl": 3,
    "sbus.pipeline.class_archive": 0,
    "sbus.pipeline.java": 0,
    "sbus.pipeline.store": 0,
    "sbus.pipeline.jobs": 1,
    "sbus.pipeline.recorder": 1,
    "sbus.pipeline.spark": 1,
    "sbus.pipeline.report": 2,
    "sbus.pipeline.cli": 3,
    "sbus.pipeline.__main__": 4,
}
"""The same within a part: a room is a folder, or a module that stands beside the folders."""

ONLY = {
    "sbus.client": {"sbus.errors", "sbus.limits", "sbus.protocol", "sbus.unix"},
    "sbus": {"sbus.errors", "sbus.version", "sbus.client", "sbus.protocol"},
    "sbus.demo": {"sbus", "sbus.errors"},
}
"""Parts that must do with less than the floors below them."""

PUBLIC = {"sbus.blocking", "sbus.testing"}
"""Modules at the top that users import."""
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
    return "sbus" if module in PUBLIC else ".".join(module.split(".")[:2])


def room(module: str) -> str:
    """The folder in its part that a module is in, or the module itself where it is in none."""
    return ".".join(module.split(".")[:3])


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


@cache
def imported_modules(module: str) -> frozenset[str]:
    """The modules of the project that this one imports."""
    return frozenset(MODULES.keys() & set(imports(MODULES[module])) - {module})


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


def reachable(start: str, arrows: Mapping[str, Set[str]]) -> set[str]:
    """Everything that arrows lead to from here."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        more = arrows[ahead.pop()] - found
        found |= more
        ahead += more
    return found


# -- floors and rooms ------------------------------------------------------------------------------
def test_every_part_has_its_floor() -> None:
    assert {part(module) for module in MODULES} == FLOORS.keys()


def test_every_room_has_its_floor() -> None:
    divided = {part(name) for name in ROOMS}
    rooms = {room(module) for module in MODULES if part(module) in divided} - divided
    assert rooms == ROOMS.keys()


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


def test_imports_go_down_between_rooms() -> None:
    wrong = []
    for module in MODULES:
        for imported in imported_modules(module):
            own, other = room(module), room(imported)
            same_part = part(own) == part(other)
            both_listed = own != other and {own, other} <= ROOMS.keys()
            if same_part and both_listed and ROOMS[other] >= ROOMS[own]:
                wrong.append(f"{module} imports {imported}")
    assert not wrong


def test_no_module_imports_itself_through_others() -> None:
    arrows = {module: imported_modules(module) for module in MODULES}
    assert not {module for module in MODULES if module in reachable(module, arrows)}


def test_no_room_imports_itself_through_others() -> None:
    arrows: dict[str, set[str]] = {room(module): set() for module in MODULES}
    for module in MODULES:
        arrows[room(module)] |= {room(imported) for imported in imported_modules(module)}
    for name, targets in arrows.items():
        targets.discard(name)
    assert not {name for name in arrows if name in reachable(name, arrows)}


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
        if path.name != "__init__.py" and module not in used | PUBLIC and not is_program(path)
    }
    assert not dead, "imported by nothing in sbus/, and no programs either"


def test_the_top_level_is_what_was_agreed() -> None:
    names = {path.split("/")[0] for path in project_files()}
    assert names == TOP_LEVEL


def test_sentences_have_their_subject_first() -> None:
    found = [
        f"{name}: {match[0]}"
        for name in project_files()
        if name.endswith((".py", ".md", ".toml", "/run", "-venv", ".service", ".socket"))
        and PROJECT / name != Path(__file__)
        for match in BANNED_PHRASES.finditer((PROJECT / name).read_text())
    ]
    assert not found


@cache
def project_files() -> list[str]:
    """Every file that belongs to the project, relative to its top."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=PROJECT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
        return [name for name in names if (PROJECT / name).is_file()]
    # No checkout but an unpacked archive, in which a run may have left its traces.
    ignored = (PROJECT / ".gitignore").read_text().split()
    return [
        str(path.relative_to(PROJECT))
        for path in PROJECT.rglob("*")
        if path.is_file()
        and not any(
            fnmatch(name, pattern.rstrip("/"))
            for name in path.relative_to(PROJECT).parts
            for pattern in ignored
        )
    ]


def test_every_file_opens_with_what_it_is() -> None:
    assert not [module for module, path in MODULES.items() if not ast.get_docstring(tree(path))]


def test_unit_tests_have_the_folders_of_the_sources() -> None:
    tests = PROJECT / "tests/unit"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert {folder for folder in folders if not (PROJECT / "sbus" / folder).is_dir()} == set()


# -- sizes -----------------------------------------------------------------------------------------
def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_file_is_too_long() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert not {module: lines for module, lines in lengths.items() if lines > MODULE_LINES_MAX}


def test_no_function_is_too_long() -> None:
    wrong = {}
    for module, path in MODULES.items():
        for function in functions(path):
            assert function.end_lineno is not None
            lines = function.end_lineno - function.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                wrong[f"{module}: {function.name}, line {function.lineno}"] = lines
    assert not wrong


def test_no_constructor_has_too_many_parameters() -> None:
    wrong = {}
    for module, path in MODULES.items():
        for function in functions(path):
            own = function.args
            count = len(own.posonlyargs) + len(own.args) + len(own.kwonlyargs) - 1  # self
            if function.name == "__init__" and count > CONSTRUCTOR_PARAMETERS_MAX:
                wrong[f"{module}, line {function.lineno}"] = count
    assert not wrong


# -- banned constructs and words -------------------------------------------------------------------


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
