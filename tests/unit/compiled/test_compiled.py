"""Which step is used, and that C and Python agree about what both read."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import sbus.compiled
from deploy import compile_step
from sbus.compiled import records
from tests.support.needs import needs_compiled_step

RECORDS = ["LogRecord", "OutboxRecord", "RouteRecord", "SessionRecord", "TableRecord"]


def run(choice: str, *program: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this SBUS_STEP."""
    return subprocess.run(
        [sys.executable, *program],
        env={**os.environ, "SBUS_STEP": choice},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_build_knows_all_sources() -> None:
    folder = Path(sbus.compiled.__file__).parent
    assert compile_step.SOURCES == sbus.compiled.SOURCES
    assert set(compile_step.SOURCES) == {path.name for path in folder.glob("*.[ch]")}
    assert compile_step.digest() == sbus.compiled.sources_digest()


@needs_compiled_step
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_has_the_same_fields_in_both_languages(name: str) -> None:
    def fields(record: type) -> set[str]:
        return {field for field in vars(record) if not field.startswith("__")}

    assert fields(getattr(sbus.compiled, name)) == fields(getattr(records, name))


def test_python_can_be_chosen() -> None:
    shown = run("python", "-m", "sbus.cli.sbusd", "--version")
    assert shown.stdout.endswith("(step: python)\n")


def test_another_choice_is_one_clear_error() -> None:
    shown = run("fast", "-m", "sbus.cli.sbusd", "--version")
    assert shown.returncode == 1
    assert shown.stderr == "SBUS_STEP='fast': must be 'compiled' or 'python'\n"


@needs_compiled_step
def test_a_module_of_other_sources_is_not_used(tmp_path: Path) -> None:
    """As in a checkout whose sources have changed since it was compiled."""
    package = tmp_path / "sbus"
    compile_dir = package / "compiled"
    compile_dir.mkdir(parents=True)
    (package / "__init__.py").touch()
    for path in Path(sbus.compiled.__file__).parent.glob("*.*"):
        (compile_dir / path.name).write_bytes(path.read_bytes())
    with open(compile_dir / compile_step.SOURCES[0], "a") as source:
        source.write("\n")
    show = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import sbus.compiled as c; print(c.STEP)"
    )
    assert run("", "-P", "-c", show).stdout == "python\n"
    assert "other sources" in run("compiled", "-P", "-c", show).stderr


@needs_compiled_step
@pytest.mark.parametrize(
    ("macro", "value", "why"),
    [
        ("__BYTE_ORDER__", "__ORDER_BIG_ENDIAN__", "ordered_log is little-endian"),
        ("__SIZEOF_POINTER__", "4", "a word of the shared memory has the size of a pointer"),
    ],
)
def test_no_module_is_compiled_for_another_layout_of_words(
    tmp_path: Path, macro: str, value: str, why: str
) -> None:
    options = [f"-U{macro}", f"-D{macro}={value}"]
    with pytest.raises(compile_step.CannotCompileError, match=why):
        compile_step.compile_step(tmp_path / "module.so", options)


def test_without_a_compiler_the_bus_does_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _name: "no-compiler")
    compile_step.main(tmp_path / "module.so")
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().err.count("\n") == 1
