"""The archive of Spark's classes: who writes it, who reads it, and what Java makes of both."""

import os
import re
import subprocess
import time
from pathlib import Path

import pyspark
import pytest

from sbus.pipeline.class_archive import archive_options
from sbus.pipeline.java import java_home

JARS = Path(pyspark.__path__[0], "jars")
SECONDS_MAX = 60.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "java" / "bin").mkdir(parents=True)
    (tmp_path / "java" / "bin" / "java").touch()
    (tmp_path / "jars").mkdir()
    cache = str(tmp_path / "cache")
    return {"JAVA_HOME": str(tmp_path / "java"), "XDG_CACHE_HOME": cache}


def archive_in(options: str, name: str) -> Path:
    found = re.search(rf"'-XX:{name}=([^']+)'", options)
    assert found is not None
    return Path(found[1])


def test_a_short_program_writes_the_archive_and_others_read_it(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    jars = tmp_path / "jars"
    assert archive_options(jars, environment, may_write=False) == ""
    written = archive_in(archive_options(jars, environment, may_write=True), "ArchiveClassesAtExit")
    written.write_bytes(b"\xa8\xab\x0b\xf0")
    for may_write in (False, True):
        options = archive_options(jars, environment, may_write=may_write)
        assert archive_in(options, "SharedArchiveFile") == written
    assert written.parent.stat().st_mode & 0o077 == 0


def test_an_archive_whose_writing_was_interrupted_is_written_again(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    written = archive_in(
        archive_options(tmp_path / "jars", environment, may_write=True), "ArchiveClassesAtExit"
    )
    written.write_bytes(b"\0\0\0\0what follows the first bytes")
    assert archive_options(tmp_path / "jars", environment, may_write=False) == ""
    again = archive_options(tmp_path / "jars", environment, may_write=True)
    assert archive_in(again, "ArchiveClassesAtExit") == written


@pytest.mark.parametrize("changed", ["java/bin/java", "jars"])
def test_another_java_or_spark_has_an_archive_of_its_own(
    tmp_path: Path, environment: dict[str, str], changed: str
) -> None:
    """And an old one of others is deleted."""
    before = archive_in(
        archive_options(tmp_path / "jars", environment, may_write=True), "ArchiveClassesAtExit"
    )
    before.write_bytes(b"\xa8\xab\x0b\xf0")
    os.utime(tmp_path / changed, (1, 1))
    young = archive_options(tmp_path / "jars", environment, may_write=True)
    assert archive_in(young, "ArchiveClassesAtExit") != before
    assert before.exists()
    month_ago = time.time() - 30 * 86_400
    os.utime(before, (month_ago, month_ago))
    archive_options(tmp_path / "jars", environment, may_write=True)
    assert not before.exists()


def test_without_a_cache_directory_java_starts_without_an_archive(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.warns(UserWarning, match=r"without an archive.*cache"):
        assert archive_options(tmp_path / "jars", environment, may_write=True) == ""


def test_java_writes_the_archive_last_of_all_and_reads_it(tmp_path: Path) -> None:
    given = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    given["JAVA_HOME"] = str(java_home(given))
    first = archive_options(JARS, given, may_write=True)
    printed = run_java(given, first)
    assert "source: file:" in printed
    then = archive_options(JARS, given, may_write=True)
    assert archive_in(then, "SharedArchiveFile") == archive_in(first, "ArchiveClassesAtExit")
    assert "source: shared objects file (top)" in run_java(given, then)


def test_java_does_without_an_archive_that_is_damaged(tmp_path: Path) -> None:
    given = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    given["JAVA_HOME"] = str(java_home(given))
    archive = archive_in(archive_options(JARS, given, may_write=True), "ArchiveClassesAtExit")
    run_java(given, archive_options(JARS, given, may_write=True))
    whole = archive.read_bytes()
    archive.chmod(0o600)
    with archive.open("r+b") as file:
        file.seek(len(whole) // 2)
        file.write(bytes(byte ^ 255 for byte in whole[len(whole) // 2 :]))
    printed = run_java(given, archive_options(JARS, given, may_write=True))
    assert "source: shared objects file (top)" not in printed


def run_java(environment: dict[str, str], options: str) -> str:
    """Run a small program of Spark's jars; returns what Java says of the classes that it loads."""
    (jar,) = JARS.glob("py4j-*.jar")
    java = str(Path(environment["JAVA_HOME"], "bin", "java"))
    given = [*options.replace("'", "").split(), "-Xlog:class+load", "-cp", str(jar)]
    done = subprocess.run(
        [java, *given, "py4j.GatewayServer", "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
        env=environment,
    )
    return done.stdout
