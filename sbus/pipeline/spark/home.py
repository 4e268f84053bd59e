"""A home of Spark for Python processes that import the pyspark of this interpreter.

They prefer `python/lib/pyspark.zip` of Spark's home. No bytecode is in there, so each of them would
compile the modules that it imports.
"""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from sbus.unix.private_files import cache_path

_LINKED = ("bin", "conf", "jars")


@contextmanager
def home_without_zip(
    environment: MutableMapping[str, str],
    find_home: Callable[[], str],
    package: Path = Path(pyspark.__path__[0]),
) -> Iterator[None]:
    """During the block, SPARK_HOME has no such file, if the home that Spark would find by itself is
    its Python package."""
    package = package.resolve()
    has_programs = (package / "bin/spark-submit").is_file()
    if "SPARK_HOME" in environment or not has_programs or Path(find_home()) != package:
        yield
        return
    with suppress(OSError, RuntimeError):
        home = cache_path(environment, "spark", package)
        home.mkdir(mode=0o700, exist_ok=True)
        for name in _LINKED:
            if (package / name).exists():
                with suppress(FileExistsError):
                    (home / name).symlink_to(package / name)
        environment["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        environment.pop("SPARK_HOME", None)
