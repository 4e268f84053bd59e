"""A Spark session as the pipeline's programs want it.

One call for laptop and cluster: where Spark runs is `master`, or what spark-submit said. Java is
found (`java.py`), the workers get this interpreter and this program's modules, times are UTC, and
the log speaks of errors alone. Whatever else a program wants goes into `conf`, and wins.

Does not know what is done with the session.
"""

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from pyspark.sql import SparkSession

import sbus
from sbus.pipeline.java import provide_java

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LAUNCH_DEFAULTS = {
    "spark.driver.extraJavaOptions": f"'-Dlog4j2.configurationFile={_LOG_SETTINGS}'",
}
_LOCAL_DEFAULTS = {
    # Nobody else on this host has any business with it. Sockets with a path are also faster.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # As many tasks behind a shuffle as there are processors; the default of 200 is a cluster's.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}


def spark_session(
    *,
    master: str | None = None,
    memory: str = "1g",
    conf: Mapping[str, str] | None = None,
    name: str = "sbus",
) -> SparkSession:
    """The session of this process, made if there is none.

    `master` as Spark writes it; None: what spark-submit says, else all processors of this machine.
    `memory` is the driver's, which on one machine is all there is; under spark-submit it is too
    late for that.

    Raises ConfigurationError where no Java is found.
    """
    given = conf or {}
    launched = (
        "PYSPARK_GATEWAY_PORT" in os.environ
    )  # spark-submit has started Java, and knows where
    local = given.get("spark.master", master or ("" if launched else "local")).startswith("local")
    _prepare(os.environ, launched=launched, local=local)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    defaults = {
        **_DEFAULTS,
        **({} if launched else {"spark.driver.memory": memory, **_LAUNCH_DEFAULTS}),
        **(_LOCAL_DEFAULTS if local else {}),
    }
    for key, value in {**defaults, **given}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if importlib.util.find_spec("pyspark_sbus") is None:
        # A checkout that is not installed has no top-level package for Spark to find by its name.
        from sbus.pipeline.spark.source import DefaultSource

        spark.dataSource.register(DefaultSource)
    return spark


def _prepare(environment: MutableMapping[str, str], *, launched: bool, local: bool) -> None:
    """What the processes that Spark starts inherit."""
    if local:
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not launched:
        provide_java(environment)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    tree = str(Path(sbus.__file__).resolve().parents[1])
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    absolute = [os.path.abspath(path) for path in paths if path]
    if tree not in (*absolute, sysconfig.get_path("purelib")):
        absolute.append(tree)
    environment["PYTHONPATH"] = os.pathsep.join(absolute)
