"""An archive of the classes that Spark's Java loads: with it the first answer takes a third less
time. https://openjdk.org/jeps/350 has the theory.

Java writes it when a short program ends that has not found one; others map it into memory. It is in
the user's cache directory, where no other user can write. Its first bytes are written last, so one
that was interrupted is not used but written again, and Java checks that it fits and is whole.
"""

import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sbus.unix.private_files import cache_path

_QUIET = "-Xlog:cds=off,cds+dynamic=off"
_KEPT_SECONDS = 7 * 86_400
"""Of older ones, those of other versions are deleted."""


def archive_options(jars: Path, environment: Mapping[str, str], *, may_write: bool) -> str:
    """Options for the Java of JAVA_HOME to read the archive, or to write it; or none."""
    java = Path(environment["JAVA_HOME"], "bin", "java")
    try:
        state = [(str(path), path.stat().st_mtime_ns) for path in (java, jars)]
        archive = cache_path(environment, "classes", state).with_suffix(".jsa")
        with suppress(FileNotFoundError), archive.open("rb") as file:
            if any(file.read(4)):
                return f" {_QUIET} -XX:+VerifySharedSpaces '-XX:SharedArchiveFile={archive}'"
        if may_write:
            archive.touch()
            for other in archive.parent.glob("classes-*.jsa"):
                if other.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    other.unlink(missing_ok=True)
            return f" {_QUIET} '-XX:ArchiveClassesAtExit={archive}'"
    except (OSError, RuntimeError) as error:
        warnings.warn(f"sbus: Spark starts slowly, without an archive: {error}", stacklevel=2)
    return ""
