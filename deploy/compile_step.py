"""Compiles the ordinary step: `python deploy/compile_step.py [MODULE]`, for this checkout.

Where there is no C compiler or no Python.h, the bus does without; one line says so. Does nothing if
what is there was compiled from the same sources. Builds of packages use `compile_step`.
"""

import hashlib
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "sbus/compiled"
MODULE = FOLDER / "_step.abi3.so"
SOURCES = ("_fan_out.h", "_memory.h", "_ordinary.h", "_step.c")
OPTIONS = (
    *("-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion"),
)


class CannotCompileError(Exception):
    """Why there is no compiled step."""


class NoCompilerError(CannotCompileError):
    """This machine has no C compiler, or not what Python's C interface needs."""


def digest() -> str:
    """As `sbus.compiled.sources_digest`, which may not be importable here."""
    return hashlib.sha256(b"".join((FOLDER / name).read_bytes() for name in SOURCES)).hexdigest()


def is_current(module: Path = MODULE) -> bool:
    """Whether this was compiled from the present sources."""
    return module.exists() and digest().encode() in module.read_bytes()


def compile_step(module: Path = MODULE, more_options: Sequence[str] = ()) -> None:
    """Compile the step to this file. Raises CannotCompileError."""
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        raise NoCompilerError(f"{include} has no Python.h (Debian, Ubuntu: python3-dev)")
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[:1]
    new = module.with_name(module.name + ".new")
    digest_option = f'-DSBUS_SOURCES="{digest()}"'
    command = [*compiler, *OPTIONS, *more_options, digest_option, f"-I{include}", "-o", str(new)]
    try:
        done = subprocess.run([*command, str(FOLDER / "_step.c")], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoCompilerError(f"there is no C compiler {compiler[0]}") from error
    if done.returncode:
        raise CannotCompileError(f"{compiler[0]} failed:\n{done.stderr}")
    new.rename(module)


def main(module: Path = MODULE) -> None:
    if is_current(module):
        return
    module.unlink(missing_ok=True)
    try:
        compile_step(module)
    except CannotCompileError as error:
        print(f"compile_step: the step runs in Python: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
