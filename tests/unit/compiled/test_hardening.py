"""What the compiled step has against the exploitation of a mistake, read from the ELF file."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import sbus.compiled
from deploy import compile_step
from tests.support.needs import needs_compiled_step, needs_tool

pytestmark = [needs_compiled_step, needs_tool("readelf", "binutils")]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled as for users; the step of the tests has other options."""
    built = tmp_path_factory.mktemp("step") / "step.so"
    compile_step.compile_step(built)
    return built


def read(module: Path, *options: str) -> str:
    done = subprocess.run(["readelf", "-W", *options, module], capture_output=True, check=True)
    return done.stdout.decode()


def test_addresses_of_functions_cannot_be_overwritten(module: Path) -> None:
    assert "GNU_RELRO" in read(module, "-l")
    assert "BIND_NOW" in read(module, "-d")


def test_neither_the_stack_nor_writable_memory_is_executable(module: Path) -> None:
    segments = [line.split() for line in read(module, "-l").splitlines() if "0x" in line]
    kinds = {words[0]: "".join(words[6:-1]) for words in segments if words[0] != "LOAD"}
    assert kinds["GNU_STACK"] == "RW"
    loaded = ["".join(words[6:-1]) for words in segments if words[0] == "LOAD"]
    assert loaded
    assert not [flags for flags in loaded if "W" in flags and "E" in flags]


def test_overflows_are_noticed(module: Path) -> None:
    """Those of buffers on the stack, and those of calls of the C library with a known size."""
    symbols = read(module, "--dyn-syms")
    assert "__stack_chk_fail" in symbols
    assert "_chk@GLIBC" in symbols.replace("__stack_chk_fail", "")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs Linux on x86_64")
def test_jumps_lead_to_targets_of_jumps(module: Path) -> None:
    """The linker writes the property only if all parts have it; those of the C compiler may not,
    so the code itself is looked at."""
    objdump = shutil.which("objdump")
    assert objdump is not None, "it comes with readelf"
    code = subprocess.run([objdump, "-d", module], capture_output=True, check=True).stdout
    assert code.count(b"endbr64") > 20


def test_flags_of_the_environment_are_used(
    tmp_path: Path, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compile_step.is_current(module)
    monkeypatch.setenv("CFLAGS", "-O0 -DFLAG_OF_A_PACKAGER")
    monkeypatch.setenv("LDFLAGS", "-Wl,-soname,packaged.so")
    assert not compile_step.is_current(module), "it has to be compiled again"
    packaged = tmp_path / "packaged.so"
    compile_step.compile_step(packaged)
    assert "packaged.so" in read(packaged, "-d")
    assert packaged.stat().st_size != module.stat().st_size
    assert compile_step.is_current(packaged)


def test_a_build_that_needs_the_step_fails_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFLAGS", "-no-such-option")
    with pytest.raises(SystemExit, match="compile_step: "):
        compile_step.main(tmp_path / "step.so", is_required=True)
    assert sbus.compiled.STEP == "compiled"
    compile_step.main(tmp_path / "step.so")
    assert not (tmp_path / "step.so").exists()


def test_an_image_has_no_step_of_the_checkout() -> None:
    """A checkout may have one of another machine, which its .gitignore hides."""
    file = Path(__file__).resolve().parents[3] / "deploy/container/Containerfile"
    copied, _, after = file.read_text().partition("cp -R /source/sbus /usr/lib/sbus/sbus")
    assert copied
    removed, _, compiled = after.partition("compile_step.py --required")
    assert "rm -f /usr/lib/sbus/sbus/compiled/*.so" in removed
    assert compiled
