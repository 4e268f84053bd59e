"""A Spark session with the settings that the pipeline's programs use.

One call serves laptop and cluster: Spark runs at `master`, or where spark-submit said. Java is
found by `java.py`, the workers get this interpreter and this program's modules, times are UTC,
and the log has errors only. Settings in `conf` take precedence.
"""

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping, MutableMapping
from contextlib import nullcontext
from pathlib import Path

import pyspark
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

import sbus
from sbus.pipeline.class_archive import archive_options
from sbus.pipeline.java import java_home
from sbus.pipeline.spark.home import home_without_zip

_LOG_OPTION = f"'-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}'"
_SHORT_OPTIONS = " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""If Java does not optimise, starting takes half of the time, and scans a third to a half more."""
_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_DEFAULTS = {
    # No other user of this host can connect to these; they are also faster than TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Several tasks for each processor in a scan, so that none is idle while others still scan.
    "spark.sql.files.minPartitionNum": str(4 * (os.cpu_count() or 2)),
    # One task for each processor behind a shuffle; the default of 200 is for clusters.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}


def spark_session(
    *,
    master: str | None = None,
    memory: str = "1g",
    conf: Mapping[str, str] | None = None,
    name: str = "sbus",
    is_short: bool = False,
) -> SparkSession:
    """The session of this process, made if there is none.

    `master` is as Spark writes it; None means what spark-submit said, else all processors of this
    machine. `memory` is the driver's, which on one machine is all there is; under spark-submit it
    has no effect. `is_short` is for programs that run for seconds. Raises ConfigurationError if no
    Java is found.
    """
    given = conf or {}
    # Java runs already if spark-submit has launched this program, or for the session there is.
    launched = "PYSPARK_GATEWAY_PORT" in os.environ or SparkSession.getActiveSession() is not None
    local = given.get("spark.master", master or ("" if launched else "local")).startswith("local")
    _prepare(os.environ, launched=launched, local=local)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    is_own_python = os.environ["PYSPARK_PYTHON"] == given.get(
        "spark.pyspark.python", sys.executable
    )
    may_choose = local and not launched and is_own_python
    with home_without_zip(os.environ, _find_spark_home) if may_choose else nullcontext():
        settings = _DEFAULTS | (_LOCAL_DEFAULTS if local else {})
        if not launched:
            settings["spark.driver.memory"] = memory
            jars = Path(os.environ.get("SPARK_HOME", pyspark.__path__[0]), "jars")
            archive = archive_options(jars, os.environ, may_write=is_short)
            java_options = _LOG_OPTION + _SHORT_OPTIONS * is_short + archive
            settings["spark.driver.extraJavaOptions"] = java_options
        for key, value in {**settings, **given}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
    if importlib.util.find_spec("pyspark_sbus") is None:
        # A checkout that is not installed has no top-level package that Spark could find.
        from sbus.pipeline.spark.source import DefaultSource

        spark.dataSource.register(DefaultSource)
    return spark


def _prepare(environment: MutableMapping[str, str], *, launched: bool, local: bool) -> None:
    """Set the environment that Spark's processes inherit."""
    if local:
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not launched:
        environment["JAVA_HOME"] = str(java_home(environment))
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    tree = str(Path(sbus.__file__).resolve().parents[1])
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    absolute = [os.path.abspath(path) for path in paths if path]
    if tree not in (*absolute, sysconfig.get_path("purelib")):
        absolute.append(tree)
    environment["PYTHONPATH"] = os.pathsep.join(absolute)
