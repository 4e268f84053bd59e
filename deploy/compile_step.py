"""Compiles the ordinary step: `python deploy/compile_step.py [--required] [MODULE]`.

Where there is no C compiler or no Python.h, the bus does without; one line says so. With
`--required`, that is an error. Does nothing if what is there was compiled in the same way from the
same sources. Builds of packages use `compile_step`.

The step parses packets of hostile clients, so it is compiled with what the compiler and the linker
have against the exploitation of a mistake. CPPFLAGS, CFLAGS and LDFLAGS, as dpkg-buildflags sets
them, have precedence.
"""

import hashlib
import os
import platform
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
    *("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong"),
    "-fno-plt",  # which makes up for much of what these cost
    *("-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"),
)
BRANCH_PROTECTION = {
    "aarch64": ("-mbranch-protection=standard",),
    "x86_64": ("-fcf-protection=full",),
}
"""By architecture: against jumps to places that are no targets of jumps."""


class CannotCompileError(Exception):
    """Why there is no compiled step."""


class NoCompilerError(CannotCompileError):
    """This machine has no C compiler, or not what Python's C interface needs."""


def digest() -> str:
    """As `sbus.compiled.sources_digest`, which may not be importable here."""
    return hashlib.sha256(b"".join((FOLDER / name).read_bytes() for name in SOURCES)).hexdigest()


def options(more: Sequence[str] = ()) -> list[str]:
    """How the step is compiled on this machine, with the flags of the environment."""
    given = " ".join(os.environ.get(name, "") for name in ("CPPFLAGS", "CFLAGS", "LDFLAGS"))
    return [*OPTIONS, *BRANCH_PROTECTION.get(platform.machine(), ()), *more, *shlex.split(given)]


def build_id(more_options: Sequence[str] = ()) -> str:
    """What the linker writes into the module, by which other options are noticed."""
    return hashlib.sha1("\n".join(options(more_options)).encode()).hexdigest()


def is_current(module: Path = MODULE, more_options: Sequence[str] = ()) -> bool:
    """Whether this was compiled from the present sources, with the present options."""
    if not module.exists():
        return False
    content = module.read_bytes()
    return digest().encode() in content and bytes.fromhex(build_id(more_options)) in content


def compile_step(module: Path = MODULE, more_options: Sequence[str] = ()) -> None:
    """Compile the step to this file. Raises CannotCompileError."""
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        raise NoCompilerError(f"{include} has no Python.h (Debian, Ubuntu: python3-dev)")
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[:1]
    new = module.with_name(module.name + ".new")
    marks = [f'-DSBUS_SOURCES="{digest()}"', f"-Wl,--build-id=0x{build_id(more_options)}"]
    command = [*compiler, *options(more_options), *marks, f"-I{include}", "-o", str(new)]
    try:
        done = subprocess.run([*command, str(FOLDER / "_step.c")], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoCompilerError(f"there is no C compiler {compiler[0]}") from error
    if done.returncode:
        raise CannotCompileError(f"{compiler[0]} failed:\n{done.stderr}")
    new.rename(module)


def main(module: Path = MODULE, *, is_required: bool = False) -> None:
    if is_current(module):
        return
    module.unlink(missing_ok=True)
    try:
        compile_step(module)
    except CannotCompileError as error:
        if is_required:
            raise SystemExit(f"compile_step: {error}") from error
        print(f"compile_step: the step runs in Python: {error}", file=sys.stderr)


if __name__ == "__main__":
    paths = [argument for argument in sys.argv[1:] if argument != "--required"]
    main(*map(Path, paths[:1]), is_required="--required" in sys.argv)
